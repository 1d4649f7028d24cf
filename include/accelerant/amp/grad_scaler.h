// Dynamic loss scaling, with the meaning of torch.amp.GradScaler.
//
//   accelerant::GradScaler scaler({.device = torch::kCUDA});
//   ...
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);                           // only to inspect gradients, for example
//   accelerant::clip_grad_norm_(net->parameters(), 1.0);  // to clip them
//   auto result = scaler.step(optimizer);                 // skipped if a gradient is inf or nan
//   scaler.update();                                      // once, after all optimizers
//   optimizer.zero_grad();
//
// float16 gradients underflow below 6e-8. The scaler multiplies the loss, and so every gradient, by
// a factor that it keeps as large as possible: after an overflow it skips the step and lowers the
// scale; after growth_interval clean iterations it raises the scale.
//
// Between scale() and update(), only the step of a plain torch::optim optimizer waits for the
// device; that of an AmpOptimizer does not. Other functions that wait say so below. (update() also
// waits on devices without Accelerant's kernels, that is, other than CPU and CUDA, and if scale and
// gradients are on different devices.) overflow_report() tells where an overflow came from.
//
// Optimizers are borrowed for the duration of a call. Use a scaler from one thread at a time, and
// from one stream per device. docs/parity.md lists the intentional differences from PyTorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "accelerant/amp/step_result.h"
#include "accelerant/tensor/nested.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant {

namespace detail {
struct ScalerAccess;
}

struct GradScalerOptions {
  // The kind of device to train on. If it is CUDA and there is no CUDA device, the scaler logs a
  // warning and disables itself, as in PyTorch. It does not determine where the scale lives: that
  // is the device of the first loss. Default: CUDA.
  c10::DeviceType device = c10::DeviceType::CUDA;

  // The initial scale. Positive and finite, and within min_scale and max_scale if those are set.
  // Default: 65536.
  double init_scale = 65536.0;

  // The scale is multiplied by this when it grows. Greater than 1. Default: 2.
  double growth_factor = 2.0;

  // The scale is multiplied by this after an overflow. Between 0 and 1, both excluded. Default:
  // 0.5.
  double backoff_factor = 0.5;

  // Consecutive clean iterations before the scale grows. At least 1. Default: 2000.
  int64_t growth_interval = 2000;

  // If false, scale, unscale_ and update do nothing, and step just steps. Default: true.
  bool enabled = true;

  // The scale never backs off below this. Positive. Default: the smallest normal float, so that the
  // scale cannot get stuck at zero.
  double min_scale = 0x1p-126;

  // The scale never grows above this. Default: the largest float.
  double max_scale = 0x1.fffffep127;

  // The number of overflows at which the scale backs off: 1 backs off at each overflow, 2 tolerates
  // one. Every overflow skips the step in any case. Once the allowance is used up, every further
  // overflow backs off. Default: 1.
  int64_t hysteresis = 1;

  // When to refill the allowance of `hysteresis`: when the scale grows (as in Megatron and
  // DeepSpeed), or at every clean iteration (as in Apex). Default: on growth.
  enum class HysteresisRefill { on_growth, on_clean_iteration };
  HysteresisRefill hysteresis_refill = HysteresisRefill::on_growth;

  // If false, the scale never changes by itself; overflows still skip steps. Default: true.
  bool dynamic = true;
};

// What the scaler has done so far, as of the last completed update.
struct GradScalerStatus {
  double scale = 1.0;
  int64_t growth_tracker = 0;  // consecutive clean iterations since the last overflow or growth
  int64_t updates = 0;         // iterations evaluated by update()
  int64_t skips = 0;           // how many of those had an overflow
  int64_t last_skip = 0;       // number, from 1, of the latest of those; 0: none so far
};

struct OverflowedParameter {
  std::string name;            // from GradScaler::name_parameters, or "group 0 parameter 3"
  std::vector<int64_t> shape;  // empty if the parameter no longer exists
  int64_t inf_count = 0;       // infinite elements of its gradient after unscaling
  int64_t nan_count = 0;       // elements that were not a number
};

// Where an overflow came from.
struct OverflowReport {
  // In the order in which the optimizers were unscaled and list their parameters; empty if every
  // gradient was finite.
  std::vector<OverflowedParameter> parameters;

  // One line per parameter, for a log.
  std::string to_string() const;
};

class GradScaler {
 public:
  // Throws Error if an option is out of range.
  explicit GradScaler(const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;  // a moved-from scaler may only be destroyed or assigned to
  GradScaler& operator=(GradScaler&&) noexcept;

  // Multiplies the outputs (a tensor, or containers and structs of tensors) by the scale. float16
  // tensors become float32, so that the product cannot overflow.
  template <class T>
  T scale(const T& outputs) {
    static_assert(NestedTensors<T>,
                  "GradScaler::scale: outputs must be a Tensor, or a container or struct with "
                  "nothing but Tensors inside");
    if (!is_enabled()) return outputs;
    return map_tensors(outputs, [this](const at::Tensor& output) { return scale_tensor(output); });
  }

  // Divides the optimizer's gradients by the scale and checks them for inf and nan. Optional before
  // step(); at most once per optimizer and update().
  void unscale_(torch::optim::Optimizer& optimizer);

  // Unscales the gradients if that has not been done, and steps the optimizer if all of them are
  // finite. An AmpOptimizer decides on the device; with any other optimizer, the host waits for the
  // check. float16 gradients (of float16 parameters) throw Error unless the optimizer is an
  // AmpOptimizer: keep parameters in float32.
  StepResult step(torch::optim::Optimizer& optimizer);

  // With a closure. Only for a disabled scaler; otherwise throws Error.
  StepResult step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure);

  // Ends the iteration: lowers or raises the scale according to the checks since the last update.
  void update();

  // Ends the iteration and sets the scale, which must be positive and finite. A tensor must have
  // one element, on any device; the scaler keeps no reference to it. Throws Error otherwise.
  void update(double new_scale);
  void update(const at::Tensor& new_scale);

  // The current scale; 1 when disabled. Waits for the device.
  double get_scale() const;

  double get_growth_factor() const;
  double get_backoff_factor() const;
  int64_t get_growth_interval() const;
  void set_growth_factor(double growth_factor);
  void set_backoff_factor(double backoff_factor);
  void set_growth_interval(int64_t growth_interval);
  bool is_enabled() const;

  // PyTorch's five keys (scale, growth_factor, backoff_factor, growth_interval, _growth_tracker),
  // and under "accelerant" what PyTorch does not have. Empty when disabled. Waits for the device.
  // Include <nlohmann/json.hpp> to use it.
  nlohmann::json state_dict() const;

  // Loads a state written here or by PyTorch, including factors and interval; options that PyTorch
  // does not have are unchanged. Checks all values before applying any. Waits for the device. Does
  // nothing when disabled.
  void load_state_dict(const nlohmann::json& state);

  // Never waits: reflects the last update() that the device has completed. It is up to date after a
  // call that waits, such as get_scale().
  GradScalerStatus status() const;

  // The parameters whose gradients were not finite in the checks since the last update() or, right
  // after update(), in the iteration that it ended. Waits for the device. Works even if the
  // gradients are gone.
  OverflowReport overflow_report() const;

  // Names for overflow_report(): scaler.name_parameters(net->named_parameters()), with a prefix to
  // distinguish several models. Also accepts any range of pairs (name, tensor).
  template <class NamedParameters>
  void name_parameters(const NamedParameters& named_parameters, const std::string& prefix = "") {
    for (const auto& item : named_parameters) {
      if constexpr (requires { item.key(); }) {
        name_parameter(item.value(), prefix + item.key());
      } else {
        name_parameter(item.second, prefix + item.first);
      }
    }
  }

  // The overflow flags of an optimizer since the last update(), one zero-dimensional float32 tensor
  // per device with gradients: 0, or 1 for overflow. Read-only; empty before the check.
  std::vector<at::Tensor> found_inf(const torch::optim::Optimizer& optimizer) const;

  // For processes that hold different gradients. The function gets an optimizer's overflow flag, a
  // zero-dimensional float32 tensor on the scale's device, and replaces it by the maximum over all
  // processes; any value but 0 means overflow. unscale_() and step() each call it exactly once,
  // even in a process without gradients, which counts as clean. An empty function removes it.
  void set_found_inf_reduction(std::function<void(at::Tensor& found_inf)> reduction);

 private:
  friend struct detail::ScalerAccess;
  struct Impl;

  at::Tensor scale_tensor(const at::Tensor& output);
  void name_parameter(const at::Tensor& parameter, const std::string& name);

  std::unique_ptr<Impl> impl_;
};

// What the step of an AmpOptimizer gets. All tensors are zero-dimensional float32 on the device of
// the scale.
struct AmpStepControls {
  // Divide the gradients by this. Undefined: they need no scaling.
  at::Tensor grad_scale;

  // 1: change neither parameters nor state nor step count. 0: step. No other value occurs.
  at::Tensor found_inf;
};

// The interface of optimizers that unscale and skip on the device.
//
// GradScaler::step must know whether to call a plain torch::optim::Optimizer, so it waits for the
// overflow flag. An optimizer that also derives from AmpOptimizer gets the flag and the scale as
// tensors instead, and is always called: the host does not wait.
//
//   class AmpSgd : public torch::optim::SGD, public accelerant::AmpOptimizer {
//    public:
//     using SGD::SGD;
//     using SGD::step;  // the plain step stays visible beside the one below
//     torch::Tensor step(const accelerant::AmpStepControls& controls) override { ... }
//   };
//
// docs/mixed_precision.md has a complete one.
class AmpOptimizer {
 public:
  virtual ~AmpOptimizer() = default;

  // Steps according to the controls and returns the loss, if the optimizer has one. Must not wait
  // for the device.
  virtual at::Tensor step(const AmpStepControls& controls) = 0;

  // A factor that the program itself has applied to the gradients, in addition to the scaler's:
  // zero-dimensional float32, or undefined for none. GradScaler::step combines it with the controls
  // and clears it; an override of step ignores it. (PyTorch's fused optimizers call it grad_scale.)
  at::Tensor extra_grad_scale;
};

}  // namespace accelerant
