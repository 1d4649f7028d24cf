// Accelerator: windows, backward, and the handling of gradients before a step.
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "accelerant/accelerator/accelerator.h"
#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerator/capture/graphed_optimizer.h"
#include "accelerator/core.h"
#include "accelerator/loop/gradient_exchange.h"
#include "accelerator/offload/host_gradients.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"
#include "accelerator/warnings/missing_step.h"
#include "accelerator/warnings/schedule_watch.h"
#include "accelerator/warnings/undivided_data.h"

namespace accelerant {
namespace {

using detail::Core;
using detail::Window;

void check_loss(const at::Tensor& loss, const BackwardOptions& options) {
  if (!loss.defined()) {
    throw Error(ErrorDetails{
        .problem = "backward() got no loss", .expected = "a tensor", .got = "an undefined tensor"});
  }
  if (!loss.requires_grad()) {
    throw Error(ErrorDetails{
        .problem = "backward() got a loss without a graph",
        .expected = "a loss that depends on parameters which require gradients",
        .got = "a tensor that requires no gradient",
        .hint = "compute the loss from model(x) without detach(), item() or a NoGradGuard, and "
                "with parameters that are not all frozen"});
  }
  if (loss.numel() != 1 && !options.gradient.defined()) {
    throw Error(
        ErrorDetails{.problem = "backward() got a loss that is not a single number",
                     .expected = "one element",
                     .got = c10::str("a tensor of shape ", loss.sizes()),
                     .hint = "reduce it, as in loss.mean(), or pass the weights of its elements: "
                             "accelerator.backward(loss, {.gradient = weights})"});
  }
  if (options.error_if_nonfinite && !loss.detach().isfinite().all().item<bool>()) {
    throw Error(ErrorDetails{.problem = "The loss is not finite",
                             .expected = "finite values",
                             .got = loss.numel() == 1
                                        ? std::to_string(loss.item<double>())
                                        : std::string("values that include inf or nan"),
                             .hint = "check the batch and the learning rate"});
  }
}

// Sums over items are divided by numbers, which a graph can only read from its own tensors.
void note_items(Core& core, const Window* window, bool on_host) {
  if (on_host) {
    core.capture.refuse(
        "backward(loss_sum, num_items) gets a number on the host, not a tensor on the device");
  } else if (window != nullptr && core.window_rules().steps > 1) {
    core.capture.refuse("a window over several micro-steps is divided by items");
  }
}

// The first part of every form of backward. Returns the window that the loss belongs to.
Window* begin_backward(Core& core, const at::Tensor& loss, const BackwardOptions& options) {
  check_loss(loss, options);
  core.capture.replayable([&core] {
    core.checkpoints.begin_backward();
    ++core.counts.backwards;
  });
  core.loss_watch.begin_backward(core, loss);
  detail::look_for_missing_step(core);
  detail::look_for_missing_schedule_step(core);
  detail::look_for_undivided_data(core);
  Window* window = core.accumulation.open();
  if (window == nullptr) {
    for (const auto& optimizer : core.optimizers.all()) optimizer->leave_complete_window();
  }
  if (window == nullptr && core.window_rules().steps > 1 && !core.outside_windows.has_warned) {
    core.outside_windows.has_warned = true;
    log(LogLevel::warning,
        "gradient_accumulation.steps is more than 1, but backward() ran outside accumulate(), "
        "so nothing is accumulated. At the top of the loop, write auto window = "
        "accelerator.accumulate(model);");
  }
  core.scaler_updates.update_if_due();
  return window;
}

void run_backward(Core& core, Window* window, const at::Tensor& loss,
                  const BackwardOptions& options) {
  const auto span = core.timeline().span(Phase::backward);
  detail::LeavingGradients leaving(core);
  const bool is_watched = !core.capture.is_capturing() && core.warnings.are_open();
  for (const auto& optimizer : core.optimizers.all()) {
    if (is_watched) optimizer->watch_before_backward(window);
    optimizer->note_backward();
  }
  // Set before the call: some gradients may exist even if autograd throws.
  if (window != nullptr) {
    core.capture.replayable([window, form = window->gathered.form] {
      window->gathered.form = form;
      detail::note_backward(*window);
    });
  }
  core.capture.in_replays([&core] {
    core.counts.backwards_at_hidden_forward = core.counts.backwards;
    for (const auto& optimizer : core.optimizers.all()) {
      detail::GraphedOptimizer(*optimizer).note_gradients_written();
      optimizer->restart_watch();
    }
  });
  leaving.begin_updates(window);
  const at::Tensor scaled = core.scales_loss() ? core.scaler.scale(loss) : loss;
  detail::run_exchanging(core, scaled, options.create_graph, [&] {
    torch::autograd::backward({scaled}, {options.gradient}, options.retain_graph,
                              options.create_graph, options.inputs);
  });
  leaving.finish();
  if (!is_watched) return;
  for (const auto& optimizer : core.optimizers.all()) optimizer->watch_after_backward(window);
}

// Gradients that no prepared optimizer owns still carry the loss scale and cannot be clipped
// correctly.
void require_owners(const std::vector<at::Tensor>& parameters,
                    const std::vector<std::shared_ptr<detail::OptimizerState>>& owners) {
  for (const at::Tensor& parameter : parameters) {
    const bool owned = !parameter.grad().defined() ||
                       std::any_of(owners.begin(), owners.end(),
                                   [&](const auto& owner) { return owner->owns(parameter); });
    if (owned) continue;
    throw Error(
        ErrorDetails{.problem = "Gradients cannot be clipped under fp16",
                     .expected = "parameters of prepared optimizers, which unscale their gradients",
                     .got = c10::str("a parameter of shape ", parameter.sizes(),
                                     " that no prepared optimizer owns"),
                     .hint = "prepare its optimizer"});
  }
}

// Whether steps have used all gradients there are.
bool are_used_up(const std::vector<std::shared_ptr<detail::OptimizerState>>& owners) {
  bool any = false;
  for (const auto& owner : owners) {
    if (!owner->has_any_gradients()) continue;
    if (!owner->has_used_gradients()) return false;
    any = true;
  }
  return any;
}

// Whether the gradients may be clipped now: not in the middle of a window. `clips`: there is a
// limit, so it is not only the norm that is asked for.
bool finish_gradients(Core& core, const std::vector<at::Tensor>& parameters,
                      bool boundary_without_owner, bool clips) {
  const auto owners = core.owners_of(parameters);
  for (const auto& owner : owners) {
    if (!owner->is_at_boundary()) return false;
  }
  if (owners.empty() && !boundary_without_owner) return false;
  if (core.scales_loss()) require_owners(parameters, owners);
  if (clips && are_used_up(owners)) owners.front()->note_late_clipping();
  for (const auto& owner : owners) owner->finish_gradients();
  return true;
}

std::optional<at::Tensor> clip_norm_of(Core& core, const std::vector<at::Tensor>& parameters,
                                       double max_norm, const NormOptions& options,
                                       bool boundary_without_owner) {
  const bool clips = std::isfinite(max_norm);
  if (!finish_gradients(core, parameters, boundary_without_owner, clips)) return std::nullopt;
  return clip_grad_norm_(parameters, max_norm, options);
}

}  // namespace

void Accelerator::backward(const at::Tensor& loss, const BackwardOptions& options) {
  Window* window = begin_backward(*core_, loss, options);
  run_backward(*core_, window, detail::weigh_mean(window, loss), options);
}

void Accelerator::backward(const at::Tensor& loss_sum, int64_t num_items,
                           const BackwardOptions& options) {
  Window* window = begin_backward(*core_, loss_sum, options);
  note_items(*core_, window, /*on_host=*/true);
  run_backward(*core_, window,
               detail::weigh_items(window, loss_sum, num_items, core_->mean_over_processes()),
               options);
}

void Accelerator::backward(const at::Tensor& loss_sum, const at::Tensor& num_items,
                           const BackwardOptions& options) {
  Window* window = begin_backward(*core_, loss_sum, options);
  note_items(*core_, window, num_items.is_cpu());
  run_backward(*core_, window,
               detail::weigh_items(window, loss_sum, num_items, core_->mean_over_processes()),
               options);
}

AccumulateScope Accelerator::open_window(const std::vector<const ModelBase*>& models) {
  std::vector<const detail::ModelState*> states;
  for (const ModelBase* model : models) {
    require_own(*model);
    states.push_back(&model->state());
  }
  return {core_, std::move(states)};
}

std::optional<at::Tensor> Accelerator::clip_grad_norm_(const ModelBase& model, double max_norm,
                                                       const NormOptions& options) {
  const auto span = core_->timeline().span(Phase::clip);
  if (options.norm_type == 2.0 && !options.error_if_nonfinite) {
    const auto owners = core_->owners_of(model.state().parameters());
    if (owners.size() == 1) {
      if (const auto norm = owners.front()->clip_with_step(model.state(), max_norm)) return norm;
    }
  }
  // Use the list that prepare() made: asking the module would build its dictionary of names in
  // every step.
  return clip_norm_of(*core_, model.state().parameters(), max_norm, options, sync_gradients());
}

std::optional<at::Tensor> Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters,
                                                       double max_norm,
                                                       const NormOptions& options) {
  const auto span = core_->timeline().span(Phase::clip);
  return clip_norm_of(*core_, parameters, max_norm, options, sync_gradients());
}

void Accelerator::clip_grad_value_(const ModelBase& model, double clip_value) {
  clip_grad_value_(model.state().parameters(), clip_value);
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  const auto span = core_->timeline().span(Phase::clip);
  if (!finish_gradients(*core_, parameters, sync_gradients(), /*clips=*/true)) return;
  accelerant::clip_grad_value_(parameters, clip_value);
}

void Accelerator::unscale_gradients(const Optimizer& optimizer) {
  optimizer.state().finish_gradients();
}

void Accelerator::unscale_gradients() {
  for (const auto& optimizer : core_->optimizers.all()) optimizer->finish_gradients();
}

void Accelerator::drop_gradients() {
  core_->capture.refuse("it drops gradients");
  core_->accumulation.start_over(core_->window_rules(), core_->loaders.progress());
  for (const auto& optimizer : core_->optimizers.all()) optimizer->drop_gradients();
  core_->scaler_updates.update_if_due();
}

}  // namespace accelerant
