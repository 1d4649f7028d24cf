#include "accelerator/gradient_exchange.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "accelerator/gradient_fingerprint.h"
#include "accelerator/model_state.h"
#include "dist/progress.h"

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
      .hint = "gradients are exchanged outside of the graph, so a second derivative would miss the "
              "other processes; compute it with torch::autograd::grad on the module itself, and "
              "exchange the result with reduce()"});
}

void refuse_missing_exchange() {
  throw Error(ErrorDetails{
      .problem = "backward() left gradients that were not exchanged between the processes",
      .expected = "a backward that goes through outputs of the prepared model",
      .got = "gradients of a model that was called as module(), or as the original",
      .hint =
          "call the prepared model; or call trigger_sync_in_backward(model) before backward()"});
}

}  // namespace

void run_exchanging(Core& core, bool create_graph, const std::function<void()>& backward) {
  const auto participants = parallel_models(core);
  if (participants.empty()) return backward();
  if (create_graph) refuse_graph_of_gradients();

  std::vector<dist::DataParallel*> parallel;
  for (const auto& participant : participants) parallel.push_back(participant.model->parallel());
  const bool exchanges =
      std::any_of(participants.begin(), participants.end(), [](const Participant& participant) {
        return participant.model->parallel()->averages_since(participant.preparations);
      });
  dist::Progress& progress = core.world->progress();
  progress.begin_step();
  try {
    failpoint("backward");
    if (exchanges) {
      const auto operation = progress.collective("averaging gradients");
      backward();
    } else {
      backward();
    }
  } catch (...) {
    dist::rethrow_backward_error(parallel, std::current_exception());
  }
  for (const auto& [model, gradients, preparations] : participants) {
    model->parallel()->require_reduced();
    // A model that did not take part may still: its outputs can be part of another loss.
    if (gradients == fingerprint_of_gradients(model->parameters())) continue;
    const bool was_local = model->has_local_forward();
    model->set_local_forward(false);
    if (was_local || model->parallel()->averages_since(preparations)) continue;
    if (model->synchronises(core)) refuse_missing_exchange();
  }
}

}  // namespace accelerant::detail
