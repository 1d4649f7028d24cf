#include "accelerator/capture/step_key.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>
#include <set>

#include "accelerator/capture/graphed_optimizer.h"
#include "accelerator/core.h"
#include "accelerator/fingerprint.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"
#include "dist/captured_exchange.h"

namespace accelerant::detail {
namespace {

using Windows = std::vector<std::shared_ptr<Window>>;

void add(StepKey& key, int64_t value) { key.push_back(static_cast<uint64_t>(value)); }
void add(StepKey& key, bool value) { key.push_back(value ? 1 : 0); }
void add(StepKey& key, double value) { key.push_back(std::bit_cast<uint64_t>(value)); }

void add(StepKey& key, at::IntArrayRef values) {
  for (const int64_t value : values) add(key, value);
}

void add_input(StepKey& key, const at::Tensor& input) {
  add(key, input.defined());
  if (!input.defined()) return;
  add(key, static_cast<int64_t>(input.scalar_type()));
  add(key, input.requires_grad());
  add(key, input.dim());
  add(key, input.sizes());
  add(key, input.strides());
}

// Adds the state that the window will have once the step has entered it.
void add_window(StepKey& key, const Core& core, Window window) {
  begin_micro_step(window, core.window_rules(), core.loaders.progress());
  add(key, window.complete);
  add(key, window.gathered.divisor);
  // With the right divisor the gradients need no correction, whatever the number of micro-steps.
  const int64_t micro_steps = window.gathered.micro_steps + 1;
  const bool is_corrected =
      window.complete && window.gathered.divisor != static_cast<double>(micro_steps);
  add(key, is_corrected ? micro_steps : 0);
}

// Adds the autocast settings around the call.
void add_autocast(StepKey& key, c10::DeviceType device) {
  add(key, at::autocast::is_autocast_enabled(device));
  add(key, static_cast<int64_t>(at::autocast::get_autocast_dtype(device)));
}

void add_model(StepKey& key, const ModelState& model) {
  key.push_back(model.module().modes());
  add(key, model.is_in_no_sync());
  add(key, model.parallel() != nullptr && dist::buffers_are_due(*model.parallel()));
}

void add_optimizer(StepKey& key, const OptimizerState& optimizer, const Windows& windows) {
  const auto& window = optimizer.window();
  const bool is_entered = std::ranges::find(windows, window) != windows.end();
  add(key, is_entered);
  if (!is_entered) {
    add(key, window != nullptr);
    add(key, window != nullptr && window->complete);
  }
  add(key, optimizer.awaits_step());
  add(key, optimizer.has_used_gradients());
}

}  // namespace

StepKey key_of_step(const Core& core, const std::vector<at::Tensor>& inputs, const Windows& windows,
                    bool keeps_gradients) {
  StepKey key;
  for (const at::Tensor& input : inputs) add_input(key, input);
  add(key, keeps_gradients);
  add(key, core.outside_windows.syncs);
  add(key, core.window_rules().steps);
  add_autocast(key, core.options.device->type());
  for (const auto& model : core.models.all()) add_model(key, *model);
  for (const auto& window : windows) add_window(key, core, *window);
  for (const auto& window : core.accumulation.windows()) {
    const bool is_entered = std::ranges::find(windows, window) != windows.end();
    add(key, !is_entered && window->is_gathering());
  }
  for (const auto& optimizer : core.optimizers.all()) add_optimizer(key, *optimizer, windows);
  return key;
}

bool Surroundings::allow_graphs_in(const Surroundings& there) const {
  // An optimizer that had not stepped has no graph with its step.
  const auto is_same = [](uint64_t here, uint64_t now) { return here == 0 || here == now; };
  return objects_and_rules == there.objects_and_rules &&
         std::ranges::equal(optimizers, there.optimizers, is_same);
}

Surroundings surroundings_of(const Core& core) {
  Surroundings surroundings;
  std::size_t fingerprint = 1;
  mix(fingerprint, static_cast<std::size_t>(core.models.version()));
  mix(fingerprint, static_cast<std::size_t>(core.optimizers.version()));
  mix(fingerprint, static_cast<std::size_t>(core.schedulers.version()));
  mix(fingerprint, static_cast<std::size_t>(core.checkpoints.loads()));
  mix(fingerprint, fingerprint_of_exchanges(core));
  const GradScaler& scaler = core.scaler;
  mix(fingerprint, std::bit_cast<std::size_t>(scaler.get_growth_factor()));
  mix(fingerprint, std::bit_cast<std::size_t>(scaler.get_backoff_factor()));
  mix(fingerprint, static_cast<std::size_t>(scaler.get_growth_interval()));
  core.any_parameter([&](const at::Tensor& parameter) {
    mix(fingerprint, reinterpret_cast<std::uintptr_t>(parameter.const_data_ptr()));
    mix(fingerprint, parameter.requires_grad() ? 1 : 2);
    return false;
  });
  for (const auto& optimizer : core.optimizers.all()) {
    surroundings.optimizers.push_back(GraphedOptimizer(*optimizer).fingerprint());
  }
  surroundings.objects_and_rules = fingerprint;
  return surroundings;
}

bool has_live_graph(const Core& core, const std::optional<c10::Stream>& stream) {
  std::set<const c10::TensorImpl*> exchanged;
  if (!stream) {
    for (const auto& model : core.models.all()) {
      if (model->parallel() == nullptr) continue;
      for (const at::Tensor& parameter : model->parameters()) {
        exchanged.insert(parameter.unsafeGetTensorImpl());
      }
    }
  }
  return core.any_parameter([&](const at::Tensor& parameter) {
    const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
    if (node == nullptr || exchanged.contains(parameter.unsafeGetTensorImpl())) return false;
    return !stream || node->stream() != stream;
  });
}

std::size_t fingerprint_of_exchanges(const Core& core) {
  std::size_t fingerprint = 1;
  for (const auto& model : core.models.all()) {
    if (model->parallel() == nullptr) continue;
    mix(fingerprint, reinterpret_cast<std::uintptr_t>(model.get()));
    mix(fingerprint, static_cast<std::size_t>(dist::exchange_generation(*model->parallel())));
  }
  return fingerprint;
}

bool has_gradients_to_exchange(const Core& core) {
  const auto models = core.models.all();
  return std::ranges::any_of(models, [](const auto& model) {
    return model->parallel() != nullptr && dist::waits_for_backward(*model->parallel());
  });
}

uint64_t hash_of(const StepKey& key) {
  std::size_t hash = 1;
  for (const uint64_t value : key) mix(hash, value);
  return hash;
}

std::string why_not_now(const Core& core, const Windows& windows) {
  if (core.scaler_updates.is_pending()) return "the loss scale is not up to date";
  if (core.accumulation.open() != nullptr) return "it runs inside accumulate()";
  for (const auto& model : core.models.all()) {
    if (model->parallel() == nullptr) continue;
    if (std::string reason = dist::why_not_captured_yet(*model->parallel()); !reason.empty()) {
      return reason;
    }
  }
  for (const auto& window : windows) {
    if (window->is_gathering() && window->gathered.form == Gathered::Form::items) {
      return "a window over items is incomplete";
    }
  }
  // The first backward outside windows ends complete ones.
  const auto optimizers = core.optimizers.all();
  const bool in_transition =
      windows.empty() && std::ranges::any_of(optimizers, [](const auto& optimizer) {
        return optimizer->window() != nullptr && optimizer->window()->complete;
      });
  return in_transition ? "an optimizer is still in a window" : "";
}

}  // namespace accelerant::detail
