#include "accelerator/capture/engine.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <iterator>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerator/capture/host_state.h"
#include "accelerator/optimizer_state.h"
#include "tensor/current_message.h"

namespace accelerant::detail {
namespace {

using Tensors = std::vector<at::Tensor>;

// Kinds of steps that are remembered for having run once: a program with more would never capture them anyway.
constexpr std::size_t kMostKindsSeen = 256;

constexpr int64_t kCallsUntilItIsSaid = 16;

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

Tensors on_device(Tensors inputs, c10::Device device) {
  for (at::Tensor& input : inputs) {
    if (input.defined() && input.device() != device)
      input = input.to(device, /*non_blocking=*/true);
  }
  return inputs;
}

// Memory for an input that stays. A layout with gaps or overlaps is not worth keeping.
at::Tensor room_for(const at::Tensor& input) {
  if (!input.defined()) return {};
  const at::NoGradGuard no_grad;
  return input.is_non_overlapping_and_dense()
             ? at::empty_strided(input.sizes(), input.strides(), input.options())
             : at::empty_like(input, at::MemoryFormat::Contiguous);
}

Tensors rooms_for(const Tensors& inputs) {
  Tensors rooms;
  for (const at::Tensor& input : inputs) rooms.push_back(room_for(input));
  return rooms;
}

void fill(const Tensors& rooms, const Tensors& inputs) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    if (rooms[i].defined()) rooms[i].copy_(inputs[i], /*non_blocking=*/true);
  }
}

Tensors copies_of(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  Tensors copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.defined() ? tensor.clone() : at::Tensor());
  }
  return copies;
}

// What an earlier replay has returned must not change, and a graph's outputs belong to nobody's autograd graph.
StepOutputs detached(StepOutputs outputs) {
  for (at::Tensor& tensor : outputs.tensors) {
    if (tensor.defined()) tensor = tensor.detach();
  }
  return outputs;
}

bool is_elsewhere(const Tensors& tensors, c10::Device device) {
  return std::ranges::any_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.device().type() != device.type();
  });
}

}  // namespace

CaptureEngine::CaptureEngine(const std::shared_ptr<Core>& core, const CaptureOptions& options)
    : core_(core), options_(options) {
  check(options);
  BackendChoice choice = backend_for(*core);
  backend_ = std::move(choice.backend);
  if (backend_) return;
  why_not_ = choice.why_not;
  log_on_main(LogLevel::info, "capture(): the step runs eagerly: " + why_not_);
}

StepOutputs CaptureEngine::run(Tensors inputs, const StepBody& body) {
  const auto core = require_core(core_);
  is_replay_ = false;
  inputs = on_device(std::move(inputs), *core->options.device);
  const bool is_part_of_another = core->recorder != nullptr;
  if (!backend_ || is_part_of_another || !at::GradMode::is_enabled()) {
    return detached(body(inputs));
  }
  core->checkpoints.finish_resume_if_all_are_there();
  core->update_scaler_if_due();  // as the step's backward would
  forget_graphs_of_other_surroundings(*core);
  const bool keeps_gradients = core->window_rules().steps > 1 || has_any_gradient(*core);
  if (keeps_gradients) kept_.attach();
  if (const std::string reason = why_not_now(*core, windows_); !reason.empty()) {
    return run_eagerly_because(*core, reason, inputs, body, keeps_gradients);
  }
  const StepKey key = key_of_step(*core, inputs, windows_, keeps_gradients);
  if (Captured* const known = find(key)) return replay(*core, *known, inputs);
  if (!may_capture(key)) return run_eagerly(*core, inputs, body, keeps_gradients, &key);
  // Casts of weights in the cache are from before, and hold graphs of autograd.
  at::autocast::clear_cache();
  if (has_live_graph(*core)) {
    return run_eagerly_because(
        *core,
        "the program holds an output or a loss of a forward outside of the step; detach() it",
        inputs, body, keeps_gradients);
  }
  Captured* const captured = capture(*core, key, inputs, body, keeps_gradients);
  return captured != nullptr ? replay(*core, *captured, inputs) : detached(body(inputs));
}

void CaptureEngine::forget_graphs_of_other_surroundings(const Core& core) {
  Surroundings now = surroundings_of(core);
  const bool are_of_use = surroundings_.allow_graphs_in(now);
  surroundings_ = std::move(now);
  if (are_of_use) return;
  graphs_.clear();
  seen_.clear();
  windows_.clear();
  optimizers_.clear();
  kept_ = {};
}

CaptureEngine::Captured* CaptureEngine::find(const StepKey& key) {
  const auto found =
      std::ranges::find_if(graphs_, [&](const Captured& captured) { return captured.key == key; });
  if (found == graphs_.end()) return nullptr;
  graphs_.splice(graphs_.begin(), graphs_, found);
  return &graphs_.front();
}

// The first calls of all are warm-up, and the first of each kind: libraries choose algorithms and allocate what they
// keep, and a kind that comes once is not worth a graph.
bool CaptureEngine::may_capture(const StepKey& key) const {
  return eager_calls_ >= options_.warmup && seen_.contains(key);
}

StepOutputs CaptureEngine::run_eagerly(Core& core, const Tensors& inputs, const StepBody& body,
                                       bool keeps_gradients, const StepKey* key) {
  StepRecorder recorder({.keeps_gradients = keeps_gradients,
                         .needs_steps_on_device = backend_->needs_steps_on_device()});
  StepOutputs outputs;
  backend_->run_beside([&] {
    const RecorderScope scope(core, recorder);
    outputs = detached(body(inputs));
    core.update_scaler_if_due();
  });
  ++eager_calls_;
  if (!recorder.refusal().empty()) {
    give_up(recorder.refusal());
    return outputs;
  }
  if (keeps_gradients) kept_.keep_present(core);
  // With windows that were not known the key says too little.
  const bool has_learnt = learn(recorder);
  if (seen_.size() >= kMostKindsSeen) seen_.clear();
  if (key != nullptr && !has_learnt) seen_.insert(*key);
  return outputs;
}

StepOutputs CaptureEngine::run_eagerly_because(Core& core, const std::string& reason,
                                               const Tensors& inputs, const StepBody& body,
                                               bool keeps_gradients) {
  if (++calls_in_vain_ == kCallsUntilItIsSaid) {
    log_on_main(LogLevel::warning,
                c10::str("capture(): the last ", calls_in_vain_, " calls ran eagerly: ", reason));
  }
  return run_eagerly(core, inputs, body, keeps_gradients);
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

std::string CaptureEngine::why_it_cannot_be(const Tensors& inputs) const {
  if (std::ranges::any_of(inputs, [](const at::Tensor& input) {
        return input.defined() && input.requires_grad();
      })) {
    return "an input requires gradients";
  }
  // Graphs that are hardly used cost more than they save.
  if (captures_ >= 4 * options_.max_graphs && replays_ < 8 * captures_) {
    return c10::str(
        "it comes in more kinds (shapes of inputs, places in a window) than max_graphs, ",
        options_.max_graphs);
  }
  return {};
}

CaptureEngine::Captured* CaptureEngine::capture(Core& core, const StepKey& key,
                                                const Tensors& inputs, const StepBody& body,
                                                bool keeps_gradients) {
  if (const std::string reason = why_it_cannot_be(inputs); !reason.empty()) {
    give_up(reason);
    return nullptr;
  }
  while (graphs() >= options_.max_graphs) graphs_.pop_back();
  Graphs made(1);
  Captured& captured = made.front();
  captured.key = key;
  captured.inputs = rooms_for(inputs);
  fill(captured.inputs, inputs);
  if (keeps_gradients) captured.gradients = kept_.tensors();

  core.settle_schedules();  // which may wait for the device, and a capture may not
  for (OptimizerState* optimizer : optimizers_) optimizer->prepare_replay();
  const HostState before(core);
  std::string failure;
  try {
    captured.graph = backend_->capture(core, [this, &core, &captured, body, keeps_gradients] {
      run_captured(core, captured, body, keeps_gradients);
    });
  } catch (...) {
    failure = current_message();
  }
  at::autocast::clear_cache();  // casts of the graph are of no use to others
  if (keeps_gradients) {
    kept_.put_back(core);
  } else {
    drop_all_gradients(core);
  }
  before.restore(core);
  core.scaler.discard_checks();
  for (OptimizerState* optimizer : optimizers_) {
    std::ranges::move(optimizer->end_capture(), std::back_inserter(captured.memory));
  }
  if (captured.graph) {
    ++captures_;
    graphs_.splice(graphs_.begin(), made);
    return &captured;
  }
  give_up(failure);
  return nullptr;
}

void CaptureEngine::run_captured(Core& core, Captured& captured, const StepBody& body,
                                 bool keeps_gradients) {
  StepRecorder recorder({.capturing = true,
                         .keeps_gradients = keeps_gradients,
                         .needs_steps_on_device = backend_->needs_steps_on_device()});
  const RecorderScope scope(core, recorder);
  StepOutputs outputs = detached(body(captured.inputs));
  core.update_scaler_if_due();

  if (waits_for_scaler_update(core))
    recorder.refuse("it leaves the update of the loss scale to others");
  const bool has_other_windows = std::ranges::any_of(recorder.windows(), [&](const auto& window) {
    return std::ranges::find(windows_, window) == windows_.end();
  });
  if (has_other_windows) recorder.refuse("it enters other windows than before");
  const bool gradients_are_in_place =
      keeps_gradients ? kept_.are_all_there(core) : !has_any_gradient(core);
  if (!gradients_are_in_place) recorder.refuse("it makes or drops other gradients than before");
  if (is_elsewhere(outputs.tensors, *core.options.device)) {
    recorder.refuse("it returns tensors of another device");
  }
  if (!recorder.refusal().empty()) throw Error(recorder.refusal());

  if (captured.graph) {  // of a backend that runs it anew
    fill(captured.outputs.tensors, outputs.tensors);
  } else {
    captured.outputs = std::move(outputs);
    captured.actions = recorder.actions();
  }
}

StepOutputs CaptureEngine::replay(Core& core, Captured& captured, const Tensors& inputs) {
  const auto span = core.timeline().span(Phase::step, "captured step");
  fill(captured.inputs, inputs);
  captured.actions.run_before_launch();
  core.settle_schedules();
  for (OptimizerState* optimizer : captured.actions.optimizers()) optimizer->prepare_replay();
  captured.graph->replay();
  core.scaler.discard_checks();  // those that the graph makes are not kept apart from each other
  StepOutputs outputs{.tensors = copies_of(captured.outputs.tensors),
                      .structure = captured.outputs.structure};
  captured.actions.run_after_launch(copies_of(captured.actions.flags()));
  is_replay_ = true;
  calls_in_vain_ = 0;
  ++replays_;
  return outputs;
}

void CaptureEngine::give_up(const std::string& reason) {
  why_not_ = reason;
  graphs_.clear();
  kept_ = {};
  backend_.reset();
  log_on_main(LogLevel::warning, "capture(): the step runs eagerly from now on: " + reason);
}

}  // namespace accelerant::detail
