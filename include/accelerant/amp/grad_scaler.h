// Dynamic loss scaling, with the meaning of torch.amp.GradScaler.
//
//   accelerant::GradScaler scaler({.device = torch::kCUDA});
//   ...
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);                           // only to look at gradients, for example
//   accelerant::clip_grad_norm_(net->parameters(), 1.0);  // to clip them
//   auto result = scaler.step(optimizer);                 // skipped if a gradient is inf or nan
//   scaler.update();                                      // once, after all optimizers
//   optimizer.zero_grad();
//
// float16 gradients underflow below 6e-8. The scaler multiplies the loss, and so every gradient, by
// a factor it keeps as large as the gradients bear: after an overflow the step is skipped and the
// scale backs off; after growth_interval clean iterations it grows.
//
// On the way from scale() to update() only the step of a plain torch::optim optimizer waits for the
// device, and not even that of an AmpOptimizer; what else waits says so below. (Without kernels of
// ours, that is on devices other than CPU and CUDA, and where scale and gradients are on different
// devices, update() waits too.) overflow_report() tells where an overflow came from.
//
// Optimizers are borrowed for the length of a call. Each scaler belongs to one thread at a time,
// and its calls to one stream for each device. Where it differs from PyTorch on purpose is listed
// in docs/parity.md.
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
  // The kind of device trained on. With CUDA and no CUDA device the scaler disables itself with a
  // warning, as PyTorch does. It does not place the scale: that lives where the first loss was.
  c10::DeviceType device = c10::DeviceType::CUDA;

  // The first scale. Positive and finite, and within min_scale and max_scale where those are given.
  double init_scale = 65536.0;

  // The scale is multiplied by this when it grows. Greater than 1.
  double growth_factor = 2.0;

  // The scale is multiplied by this after an overflow. Between 0 and 1, both excluded.
  double backoff_factor = 0.5;

  // Clean iterations in a row before the scale grows. At least 1.
  int64_t growth_interval = 2000;

  // false: scale, unscale_ and update do nothing, step just steps.
  bool enabled = true;

  // Backing off never takes the scale below this. Positive. Default: the smallest normal float, so
  // that the scale cannot get stuck at zero.
  double min_scale = 0x1p-126;

  // Growing never takes the scale above this. Default: the largest float.
  double max_scale = 0x1.fffffep127;

  // The number of overflows at which the scale backs off: 1 backs off at each, 2 lets one pass.
  // Overflows skip the step in any case. Once used up, every further overflow backs off.
  int64_t hysteresis = 1;

  // When the allowance of `hysteresis` is refilled: when the scale grows (as Megatron and DeepSpeed
  // do), or at every clean iteration (as Apex does).
  enum class HysteresisRefill { on_growth, on_clean_iteration };
  HysteresisRefill hysteresis_refill = HysteresisRefill::on_growth;

  // false: the scale does not move by itself; overflows still skip steps.
  bool dynamic = true;
};

// What the scaler did so far, as of the last completed update.
struct GradScalerStatus {
  double scale = 1.0;
  int64_t growth_tracker = 0;  // clean iterations in a row since the last overflow or growth
  int64_t updates = 0;         // iterations judged by update()
  int64_t skips = 0;           // those among them with an overflow
  int64_t last_skip = 0;       // the number, from 1, of the latest of those; 0: none so far
};

struct OverflowedParameter {
  std::string name;  // as given to GradScaler::name_parameters, else "group 0 parameter 3"
  std::vector<int64_t> shape;  // empty if the parameter is gone
  int64_t inf_count = 0;       // elements of its gradient that were infinite after unscaling
  int64_t nan_count = 0;       // and those that were not a number
};

// Where an overflow came from.
struct OverflowReport {
  // In the order in which the optimizers were unscaled and hold their parameters; empty when every
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
  GradScaler(GradScaler&&) noexcept;  // the source may then only be destroyed or assigned to
  GradScaler& operator=(GradScaler&&) noexcept;

  // Multiplies the outputs (a tensor, or containers and structs of tensors) by the scale. float16
  // tensors come back as float32, so that the product cannot overflow.
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

  // Unscales if that has not been done, and steps the optimizer if all gradients are finite. An
  // AmpOptimizer decides on the device, any other makes the host wait for the check. float16
  // gradients (of float16 parameters) are refused unless it is an AmpOptimizer: keep parameters in
  // float32.
  StepResult step(torch::optim::Optimizer& optimizer);

  // With a closure: only for a disabled scaler, otherwise an Error.
  StepResult step(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure);

  // Ends the iteration: backs off or grows the scale by what the checks since the last update
  // found.
  void update();

  // Ends the iteration and sets the scale. A tensor has one element, on any device; the scaler
  // keeps no reference to it. Positive and finite, else an Error.
  void update(double new_scale);
  void update(const at::Tensor& new_scale);

  // The scale now; waits for the device. 1 when disabled.
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

  // Takes a state written here or by PyTorch, factors and interval included; the options PyTorch
  // does not have stay as they are. Values are checked before any is taken. Waits for the device.
  // Nothing happens when disabled.
  void load_state_dict(const nlohmann::json& state);

  // Never waits: as of the last update() that the device has finished. After a call that waits,
  // such as get_scale(), it is up to date.
  GradScalerStatus status() const;

  // The parameters whose gradients were not finite in the checks since the last update(), or, right
  // after update(), in the iteration it ended. Waits for the device. Gradients may be gone by then.
  OverflowReport overflow_report() const;

  // Names for overflow_report(): scaler.name_parameters(net->named_parameters()), with a prefix to
  // tell several models apart. Also takes any range of pairs (name, tensor).
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
  // per device that holds gradients: 0, or 1 for overflow. For reading; empty before the check.
  std::vector<at::Tensor> found_inf(const torch::optim::Optimizer& optimizer) const;

  // For processes that hold different gradients: called with an optimizer's overflow flag, a
  // zero-dimensional float32 tensor on the scale's device, to take the maximum over all of them in
  // place; any value but 0 means overflow. It is called exactly once by unscale_() and once by
  // step(), also by a process without gradients, which then counts as clean. An empty function
  // removes it.
  void set_found_inf_reduction(std::function<void(at::Tensor& found_inf)> reduction);

 private:
  friend struct detail::ScalerAccess;
  struct Impl;

  at::Tensor scale_tensor(const at::Tensor& output);
  void name_parameter(const at::Tensor& parameter, const std::string& name);

  std::unique_ptr<Impl> impl_;
};

// What the step of an AmpOptimizer works with. All tensors are zero-dimensional float32 on the
// device of the scale.
struct AmpStepControls {
  // The gradients must be divided by this. Undefined: they are as they should be.
  at::Tensor grad_scale;

  // 1: change neither parameters nor state nor step count. 0: step. No other value occurs.
  at::Tensor found_inf;
};

// The interface of optimizers that unscale and skip by themselves, on the device.
//
// GradScaler::step must know whether to call a plain torch::optim::Optimizer, so it waits for the
// overflow flag. An optimizer that also derives from AmpOptimizer is handed the flag and the scale
// as tensors instead and is always called: no host wait.
//
//   class AmpSgd : public torch::optim::SGD, public accelerant::AmpOptimizer {
//    public:
//     using SGD::SGD;
//     using SGD::step;  // the plain step stays visible beside the one below
//     torch::Tensor step(const accelerant::AmpStepControls& controls) override { ... }
//   };
//
// docs/mixed_precision.md has a whole one.
class AmpOptimizer {
 public:
  virtual ~AmpOptimizer() = default;

  // Steps as the controls say and returns the loss, if the optimizer has one. Must not wait for the
  // device.
  virtual at::Tensor step(const AmpStepControls& controls) = 0;

  // A factor the program itself has put on the gradients, beside the scaler's: zero-dimensional
  // float32, or undefined for none. GradScaler::step folds it into the controls and clears it; an
  // override of step does not look at it. (PyTorch's fused optimizers call it grad_scale.)
  at::Tensor extra_grad_scale;
};

}  // namespace accelerant
