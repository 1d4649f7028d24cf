// Windows of accumulated gradients: which micro-step completes one, what a loss is divided by, and
// what the gathered gradients must still be multiplied by.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

namespace accelerant::detail {

class ModelState;

// Where the loader stands, as far as windows care.
struct LoaderProgress {
  bool is_last = false;                                // the batch in hand is the epoch's last
  std::optional<int64_t> batches_left = std::nullopt;  // with the one in hand
  int64_t samples = 0;                                 // in the batch in hand
};

// What the gradients must be multiplied by. On the device where the number is only known there.
struct Correction {
  double factor = 1.0;
  at::Tensor device_factor = {};

  bool is_needed() const { return device_factor.defined() || factor != 1.0; }
};

// One window and, when it is complete and begun again, the next one over the same models.
struct Window {
  std::vector<const ModelState*> models = {};  // sorted; empty: all

  int64_t micro_steps = 0;       // begun so far
  bool complete = true;          // the latest micro-step is the last
  bool in_scope = false;         // the latest micro-step is under way
  bool backward_ran = false;     // in the latest micro-step
  bool stepped = false;          // an optimizer did, in the latest micro-step
  bool holds_gradients = false;  // that wait for the rest of the window
  int64_t samples = 0;           // of all micro-steps
  int64_t latest_samples = 0;    // of the latest

  // Losses are divided when backward runs, by what is known then; the rest is the correction.
  enum class Form { none, mean, items };
  Form form = Form::none;
  double divisor = 1.0;            // that was used
  at::Tensor device_divisor = {};  // in its place, where the first number of items lay on a device
  double items = 0;                // so far, as far as the host knows
  at::Tensor device_items = {};    // to be added to them

  // Tensors whose gradients the correction has been applied to.
  std::unordered_set<const c10::TensorImpl*> corrected = {};
};

// Window rules that need no more than a window.
struct WindowRules {
  int64_t steps = 1;
  bool sync_with_dataloader = true;
};

void begin_micro_step(Window& window, const WindowRules& rules, const LoaderProgress& loader);

// `failed`: an exception ends the micro-step. It then does not count, unless an optimizer has
// already used its gradients. Returns whether the window is empty again, so that gradients of the
// failed micro-step can and should be dropped.
bool end_micro_step(Window& window, bool failed);

// The loss to run backward on. `window` may be null: then each backward stands for itself.
at::Tensor weigh_mean(Window* window, const at::Tensor& loss);

// As above for a sum over items. The number is a tensor of one element on any device.
at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, const at::Tensor& num_items);
at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, int64_t num_items);

// For the gradients of a complete window.
Correction correction_of(const Window& window);

// All windows of an Accelerator.
class Accumulation {
 public:
  // The window over these models, made if it is new.
  std::shared_ptr<Window> window_of(std::vector<const ModelState*> models);

  // A scope opens; an Error if another one is open.
  void enter(std::shared_ptr<Window> window, const WindowRules& rules,
             const LoaderProgress& loader);

  // The window that was entered last; null before the first.
  Window* latest() const { return latest_.get(); }

  // The same while its scope is open, else null.
  Window* open() const { return latest_ && latest_->in_scope ? latest_.get() : nullptr; }

  // Whether gradients in any window wait for the rest of it.
  bool holds_gradients() const;

  // Windows that are half complete end here.
  void abandon();

  // The model is gone: so are the windows over it.
  void forget(const ModelState& model);

  void clear();

 private:
  std::vector<std::shared_ptr<Window>> windows_;
  std::shared_ptr<Window> latest_;
};

}  // namespace accelerant::detail
