#include "accelerator/capture/engine.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iterator>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerator/capture/graphed_optimizer.h"
#include "accelerator/capture/host_state.h"
#include "accelerator/capture/step_tensors.h"
#include "accelerator/capture/tuning.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"
#include "amp/scaled_step.h"
#include "dist/captured_exchange.h"
#include "dist/world_access.h"
#include "tensor/current_message.h"
#include "watch/progress.h"

namespace accelerant::detail {
namespace {

// Maximum number of step kinds to remember as having run once. A program with more kinds would
// never capture them anyway.
constexpr std::size_t kMostKindsSeen = 256;

constexpr int64_t kCallsUntilWarning = 16;

void check(const CaptureOptions& options) {
  const auto require = [](const char* name, int64_t value) {
    if (value >= 1) return;
    throw Error(ErrorDetails{.problem = c10::str("CaptureOptions::", name, " is out of range"),
                             .expected = "at least 1",
                             .got = c10::str(value)});
  };
  require("warmup", options.warmup);
  require("max_graphs", options.max_graphs);
}

// Later replays must not change the result of an earlier one, and a graph's outputs do not belong
// to any autograd graph.
StepOutputs detached(StepOutputs outputs) {
  for (at::Tensor& tensor : outputs.tensors) {
    if (tensor.defined()) tensor = tensor.detach();
  }
  return outputs;
}

BackendChoice choose_backend(Core& core) {
  const OffloadSettings& offload = core.options.offload;
  const bool pages = std::ranges::any_of(
      core.models.all(), [](const auto& model) { return model->paged() != nullptr; });
  const bool moves_activations = offload.activations && !core.options.device->is_cpu();
  if (offload.optimizer || pages || moves_activations) {
    return {.why_not = "AcceleratorOptions::offload moves data between the device and the host"};
  }
  return core.capture.make_backend(core);
}

int64_t exchanged_messages_of(const Core& core) {
  return core.world->size() > 1 ? dist::exchanged_messages(*core.world) : 0;
}

}  // namespace

CaptureEngine::CaptureEngine(const std::shared_ptr<Core>& core, const CaptureOptions& options)
    : core_(core), options_(options) {
  check(options);
  BackendChoice choice = choose_backend(*core);
  backend_ = std::move(choice.backend);
  if (backend_ && core->world->is_connected()) {
    closing_ = dist::WorldAccess::before_close(*core->world, [this] { drop_graphs(); });
  }
  if (backend_) return;
  why_not_ = choice.why_not;
  log_on_main(LogLevel::info, "capture(): the step runs eagerly: " + why_not_);
}

void CaptureEngine::drop_graphs() {
  try {
    if (backend_) backend_->wait();  // the latest replay may still be running
  } catch (const std::exception&) {
    // The device has failed, which is reported elsewhere, or the process is ending.
  }
  graphs_.clear();
}

StepOutputs CaptureEngine::run(Tensors inputs, const StepBody& body) {
  const auto core = require_core(core_);
  is_replay_ = false;
  inputs = on_device(std::move(inputs), *core->options.device);
  const bool is_part_of_another = core->capture.is_recording();
  // Inside join_uneven_inputs() some processes may have left the loop.
  if (!backend_ || is_part_of_another || core->open_scopes.join || !at::GradMode::is_enabled()) {
    return detached(body(inputs));
  }
  core->checkpoints.finish_resume_if_all_are_there();
  core->scaler_updates.update_if_due();  // as the step's backward would
  take_exchanges_along(*core);
  const bool lost_graphs = forget_graphs_of_other_surroundings(*core);
  const bool keeps_gradients = core->window_rules().steps > 1 || has_any_gradient(*core);
  if (keeps_gradients) kept_.attach();

  const Offer own = offer_for(*core, inputs, keeps_gradients);
  const StepAgreement agreed = agree(
      *core->world,
      {.offer = own.offer, .key = own.key ? hash_of(*own.key) : 0, .lost_graphs = lost_graphs});
  if (agreed.offer == StepOffer::none) {
    give_up(own.offer == StepOffer::none ? own.reason : "another process cannot capture the step");
    return detached(body(inputs));
  }
  if (agreed.lost_graphs) graphs_.clear();
  if (agreed.offer == StepOffer::run) {
    return run_eagerly(*core, own, inputs, body, keeps_gradients);
  }
  if (Captured* const known = find(*own.key, agreed.keys)) return replay(*core, *known, inputs);
  if (agreed.offer == StepOffer::replay) {
    // The combination with the other processes' steps in this call is new.
    if (missed_.size() >= kMostKindsSeen) missed_.clear();
    missed_.insert(*own.key);
    return run_eagerly(*core, own, inputs, body, keeps_gradients);
  }
  Captured* const captured = capture(*core, *own.key, agreed.keys, inputs, body, keeps_gradients);
  return captured != nullptr ? replay(*core, *captured, inputs) : detached(body(inputs));
}

// Exchanged gradients arrive on the stream that was current when the exchange was set up.
void CaptureEngine::take_exchanges_along(const Core& core) {
  const auto stream = backend_->stream();
  if (!stream || fingerprint_of_exchanges(core) == taken_exchanges_) return;
  // While the program holds a graph, try this only now and then.
  if (uncaptured_calls_ % kCallsUntilWarning != 0) return;
  bool are_all_there = true;
  for (const auto& model : core.models.all()) {
    dist::DataParallel* const parallel = model->parallel();
    if (parallel == nullptr || dist::is_on_stream(*parallel, *stream)) continue;
    if (!dist::waits_for_backward(*parallel)) {
      backend_->run_beside([&] { dist::move_to_current_stream(*parallel); });
    }
    are_all_there = are_all_there && dist::is_on_stream(*parallel, *stream);
  }
  if (are_all_there) taken_exchanges_ = fingerprint_of_exchanges(core);
}

bool CaptureEngine::forget_graphs_of_other_surroundings(const Core& core) {
  Surroundings now = surroundings_of(core);
  const bool are_of_use = surroundings_.allow_graphs_in(now);
  surroundings_ = std::move(now);
  if (are_of_use) return false;
  const bool had_graphs = !graphs_.empty();
  graphs_.clear();
  seen_.clear();
  missed_.clear();
  windows_.clear();
  optimizers_.clear();
  kept_ = {};
  return had_graphs;
}

CaptureEngine::Offer CaptureEngine::offer_for(const Core& core, const Tensors& inputs,
                                              bool keeps_gradients) const {
  if (!declined_.empty()) return {.offer = StepOffer::none, .reason = declined_};
  if (std::string reason = why_not_now(core, windows_); !reason.empty()) {
    return {.offer = StepOffer::run, .reason = std::move(reason)};
  }
  Offer offer{.key = key_of_step(core, inputs, windows_, keeps_gradients)};
  if (has_graph_for(*offer.key) && !missed_.contains(*offer.key)) {
    offer.offer = StepOffer::replay;
    return offer;
  }
  if (!may_capture(*offer.key)) return offer;
  if (std::string reason = why_it_cannot_be(core, inputs); !reason.empty()) {
    return {.offer = StepOffer::none, .reason = std::move(reason)};
  }
  // Cached casts of weights are outdated, and hold autograd graphs.
  at::autocast::clear_cache();
  if (has_live_graph(core, backend_->stream())) {
    return {.offer = StepOffer::run,
            .reason =
                "the program holds an output or a loss of a forward outside the step; "
                "detach() it"};
  }
  offer.offer = StepOffer::capture;
  return offer;
}

bool CaptureEngine::has_graph_for(const StepKey& key) const {
  return std::ranges::any_of(graphs_,
                             [&](const Captured& captured) { return captured.key == key; });
}

CaptureEngine::Captured* CaptureEngine::find(const StepKey& key, uint64_t keys_of_all) {
  const auto found = std::ranges::find_if(graphs_, [&](const Captured& captured) {
    return captured.keys_of_all == keys_of_all && captured.key == key;
  });
  if (found == graphs_.end()) return nullptr;
  graphs_.splice(graphs_.begin(), graphs_, found);
  return &graphs_.front();
}

// The first calls overall, and the first call of each kind, are warm-up: libraries choose
// algorithms and allocate memory that they keep, and a kind that occurs only once is not worth a
// graph.
bool CaptureEngine::may_capture(const StepKey& key) const {
  return eager_calls_ >= options_.warmup && seen_.contains(key);
}

StepOutputs CaptureEngine::run_eagerly(Core& core, const Offer& offer, const Tensors& inputs,
                                       const StepBody& body, bool keeps_gradients) {
  if (!offer.reason.empty()) warn_if_often_uncaptured(offer.reason);
  StepRecorder recorder({.keeps_gradients = keeps_gradients,
                         .needs_steps_on_device = backend_->needs_steps_on_device()});
  StepOutputs outputs;
  const int64_t messages_before = exchanged_messages_of(core);
  const bool is_warmup = eager_calls_ < options_.warmup;
  const CudnnSearch search(options_.tune && is_warmup &&
                           core.options.performance.cudnn_benchmark.value_or(true));
  backend_->run_beside([&] {
    const RecorderScope scope(core.capture, recorder);
    outputs = detached(body(inputs));
    core.scaler_updates.update_if_due();
  });
  ++eager_calls_;
  if (exchanged_messages_of(core) != messages_before) {
    recorder.refuse(
        "it calls gather(), reduce() or a similar function, which compares its inputs on the host");
  }
  if (!recorder.refusal().empty()) {
    decline(core, recorder.refusal());
    return outputs;
  }
  if (keeps_gradients) kept_.keep_present(core);
  // If the step entered new windows, the key was incomplete.
  const bool has_learnt = learn(recorder);
  if (seen_.size() >= kMostKindsSeen) seen_.clear();
  if (offer.key && !has_learnt) seen_.insert(*offer.key);
  return outputs;
}

void CaptureEngine::warn_if_often_uncaptured(const std::string& reason) {
  if (++uncaptured_calls_ != kCallsUntilWarning) return;
  log_on_main(LogLevel::warning,
              c10::str("capture(): the last ", uncaptured_calls_, " calls ran eagerly: ", reason));
}

bool CaptureEngine::learn(const StepRecorder& recorder) {
  const auto add_new = [](auto& known, const auto& seen) {
    bool is_new = false;
    for (const auto& each : seen) {
      if (std::ranges::find(known, each) != known.end()) continue;
      known.push_back(each);
      is_new = true;
    }
    return is_new;
  };
  add_new(optimizers_, recorder.actions().optimizers());
  return add_new(windows_, recorder.windows());
}

std::string CaptureEngine::why_it_cannot_be(const Core& core, const Tensors& inputs) const {
  for (const auto& model : core.models.all()) {
    if (model->parallel() == nullptr) continue;
    if (std::string reason = dist::why_never_captured(*model->parallel()); !reason.empty()) {
      return reason;
    }
  }
  if (std::ranges::any_of(inputs, [](const at::Tensor& input) {
        return input.defined() && input.requires_grad();
      })) {
    return "an input requires gradients";
  }
  // Graphs that are rarely used cost more than they save.
  if (captures_ >= 4 * options_.max_graphs && replays_ < 8 * captures_) {
    return c10::str("it has more kinds (shapes of inputs, positions in a window) than max_graphs, ",
                    options_.max_graphs);
  }
  return {};
}

CaptureEngine::Captured* CaptureEngine::capture(Core& core, const StepKey& key,
                                                uint64_t keys_of_all, const Tensors& inputs,
                                                const StepBody& body, bool keeps_gradients) {
  while (graphs() >= options_.max_graphs) graphs_.pop_back();
  Graphs made(1);
  Captured& captured = made.front();
  captured.key = key;
  captured.keys_of_all = keys_of_all;
  if (keeps_gradients) captured.gradients = kept_.tensors();
  const HostState before(core);
  std::string failure;
  try {
    captured.inputs = buffers_for(inputs);
    fill(captured.inputs, inputs);
    core.settle_schedules();  // may wait for the device, which a capture must not
    for (OptimizerState* optimizer : optimizers_) GraphedOptimizer(*optimizer).prepare_replay();
    backend_->run_beside([this] {
      for (OptimizerState* optimizer : optimizers_) GraphedOptimizer(*optimizer).begin_capture();
    });
    captured.graph = backend_->capture([this, &core, &captured, body, keeps_gradients] {
      run_captured(core, captured, body, keeps_gradients);
    });
  } catch (...) {
    failure = current_message();
  }
  at::autocast::clear_cache();  // casts made by the graph are not valid elsewhere
  if (keeps_gradients) {
    kept_.put_back(core);
  } else {
    drop_all_gradients(core);
  }
  before.restore(core);
  ScalerAccess::discard_checks(core.scaler);
  try {
    backend_->run_beside([&] {
      for (OptimizerState* optimizer : optimizers_) {
        std::ranges::move(GraphedOptimizer(*optimizer).end_capture(),
                          std::back_inserter(captured.memory));
      }
    });
  } catch (...) {
    failure = current_message();
    captured.graph.reset();
  }
  if (!captured.graph) give_up_exchanges(core);
  if (!have_all_captured(*core.world, captured.graph != nullptr)) {
    give_up(captured.graph ? "its capture failed in another process" : failure);
    return nullptr;
  }
  ++captures_;
  graphs_.splice(graphs_.begin(), made);
  return &captured;
}

// Resets the exchanges of an interrupted backward. Other processes may have got further.
void CaptureEngine::give_up_exchanges(const Core& core) {
  dist::WorldAccess::progress(*core.world).lose_order();
  for (const auto& model : core.models.all()) {
    dist::DataParallel* const parallel = model->parallel();
    if (parallel == nullptr || !dist::waits_for_backward(*parallel)) continue;
    backend_->run_beside([&] { dist::move_to_current_stream(*parallel); });
  }
}

void CaptureEngine::run_captured(Core& core, Captured& captured, const StepBody& body,
                                 bool keeps_gradients) {
  StepRecorder recorder({.capturing = true,
                         .keeps_gradients = keeps_gradients,
                         .needs_steps_on_device = backend_->needs_steps_on_device()});
  const RecorderScope scope(core.capture, recorder);
  StepOutputs outputs = detached(body(captured.inputs));
  core.scaler_updates.update_if_due();

  if (core.scaler_updates.is_pending()) {
    recorder.refuse("it does not update the loss scale");
  }
  const bool has_other_windows = std::ranges::any_of(recorder.windows(), [&](const auto& window) {
    return std::ranges::find(windows_, window) == windows_.end();
  });
  if (has_other_windows) recorder.refuse("it enters different windows than before");
  const bool gradients_are_in_place =
      keeps_gradients ? kept_.are_all_there(core) : !has_any_gradient(core);
  if (!gradients_are_in_place)
    recorder.refuse("it creates or drops different gradients than before");
  if (is_elsewhere(outputs.tensors, *core.options.device)) {
    recorder.refuse("it returns tensors on another device");
  }
  if (has_gradients_to_exchange(core)) {
    recorder.refuse("it runs a forward whose gradients are exchanged after the step");
  }
  if (!recorder.refusal().empty()) throw Error(recorder.refusal());
  recorder.note([&core, exchanges = ExchangeState(core)] { exchanges.restore(core); });

  if (captured.graph) {  // a backend that runs the step again in each replay
    fill(captured.outputs.tensors, outputs.tensors);
  } else {
    captured.outputs = std::move(outputs);
    captured.actions = recorder.actions();
  }
}

StepOutputs CaptureEngine::replay(Core& core, Captured& captured, const Tensors& inputs) {
  const auto span = core.timeline().span(Phase::step, "captured step");
  const int64_t updates = core.counts.updates;
  fill(captured.inputs, inputs);
  captured.actions.run_before_launch();
  for (OptimizerState* optimizer : captured.actions.optimizers()) {
    GraphedOptimizer(*optimizer).prepare_replay();
  }
  captured.graph->replay();
  // All replays share the memory of the graph's checks, so discard them.
  ScalerAccess::discard_checks(core.scaler);
  StepOutputs outputs{.tensors = copies_of(captured.outputs.tensors),
                      .structure = captured.outputs.structure};
  captured.actions.run_after_launch(copies_of(captured.actions.flags()));
  is_replay_ = true;
  uncaptured_calls_ = 0;
  ++replays_;
  // Not in the middle of a window: a program that catches the Error begins the next one.
  if (core.counts.updates > updates) core.nonfinite_stop.after_replay();
  return outputs;
}

void CaptureEngine::decline(const Core& core, const std::string& reason) {
  if (core.world->size() > 1) {
    declined_ = reason;
  } else {
    give_up(reason);
  }
}

void CaptureEngine::give_up(const std::string& reason) {
  why_not_ = reason;
  graphs_.clear();
  kept_ = {};
  backend_.reset();
  log_on_main(LogLevel::warning, "capture(): the step runs eagerly from now on: " + reason);
}

}  // namespace accelerant::detail
