#include "accelerator/loop/gradient_exchange.h"

#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "accelerator/fingerprint.h"
#include "accelerator/prepared/model_state.h"
#include "dist/world_access.h"
#include "watch/progress.h"

namespace accelerant::detail {
namespace {

struct Participant {
  std::shared_ptr<ModelState> model;
  std::size_t gradients;  // fingerprint before the backward
  int64_t preparations;   // before the backward
};

std::vector<Participant> parallel_models(const Core& core) {
  std::vector<Participant> participants;
  for (const auto& model : core.models.all()) {
    if (model->parallel() == nullptr) continue;
    participants.push_back(
        {model, fingerprint_of_gradients(model->parameters()), model->parallel()->preparations()});
  }
  return participants;
}

void refuse_graph_of_gradients() {
  throw Error(ErrorDetails{
      .problem = "backward() with create_graph cannot be used with several processes",
      .expected = "create_graph = false",
      .got = "create_graph = true",
      .hint = "gradients are exchanged outside the graph, so a second derivative would miss the "
              "other processes; compute it with torch::autograd::grad on the module itself, and "
              "exchange the result with reduce()"});
}

void refuse_missing_exchange() {
  throw Error(ErrorDetails{
      .problem = "backward() left gradients that were not exchanged between the processes",
      .expected = "a backward that goes through outputs of the prepared model",
      .got = "gradients of a model that was called through module() or the original",
      .hint =
          "call the prepared model, or call trigger_sync_in_backward(model) before backward()"});
}

double seconds_now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

Timeline::Clock::time_point moment(double seconds) {
  const std::chrono::duration<double> since_epoch(seconds);
  return Timeline::Clock::time_point(
      std::chrono::duration_cast<Timeline::Clock::duration>(since_epoch));
}

// Runs the backward and reports how long this process was busy since the previous one, without its
// waits for other processes. This is how slow processes are detected.
void run_timed(Core& core, const at::Tensor& loss, const std::function<void()>& backward) {
  dist::Progress& progress = dist::WorldAccess::progress(*core.world);
  const double waited = progress.waited();
  const auto computed_at = std::make_shared<double>(0);
  // Runs when the gradients of this process are complete, before it waits for those of the others:
  // the engine runs callbacks in the order of registration, and the exchange registers its callback
  // at its end.
  const unsigned hook = loss.register_hook([computed_at](const at::TensorBase&) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [computed_at] { *computed_at = seconds_now(); });
  });
  {
    const auto operation = progress.collective("averaging gradients");
    backward();
  }
  loss.remove_hook(hook);
  if (*computed_at > 0)
    core.timeline().add(Phase::reduction, moment(*computed_at), moment(seconds_now()));
  if (core.last_backward && *computed_at > 0) {
    const double since_then = waited - core.last_backward->waited;
    progress.note_step(*computed_at - core.last_backward->end - since_then);
  }
  core.last_backward = {.end = seconds_now(), .waited = progress.waited()};
}

// A capture does not count as a step; its replays do.
void note_step(Core& core) {
  if (core.capture.is_capturing()) return core.capture.in_replays([&core] { note_step(core); });
  dist::WorldAccess::progress(*core.world).begin_step();
}

}  // namespace

void run_exchanging(Core& core, const at::Tensor& loss, bool create_graph,
                    const std::function<void()>& backward) {
  const auto participants = parallel_models(core);
  if (participants.empty()) return backward();
  if (create_graph) refuse_graph_of_gradients();

  std::vector<dist::DataParallel*> parallel;
  for (const auto& participant : participants) parallel.push_back(participant.model->parallel());
  const bool exchanges =
      std::any_of(participants.begin(), participants.end(), [](const Participant& participant) {
        return participant.model->parallel()->averages_since(participant.preparations);
      });
  note_step(core);
  try {
    failpoint("backward");
    if (exchanges && !core.capture.is_capturing()) {
      run_timed(core, loss, backward);
    } else {
      backward();
    }
  } catch (...) {
    dist::rethrow_backward_error(parallel, std::current_exception());
  }
  for (const auto& [model, gradients, preparations] : participants) {
    // A model without new gradients may still take part: its outputs can belong to another loss.
    if (gradients == fingerprint_of_gradients(model->parameters())) continue;
    const bool was_local = model->has_local_forward();
    model->set_local_forward(false);
    if (was_local || model->parallel()->averages_since(preparations)) continue;
    if (model->synchronises(core)) refuse_missing_exchange();
  }
}

}  // namespace accelerant::detail
