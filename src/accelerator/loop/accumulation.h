// Windows of accumulated gradients: which micro-step completes one, what a loss is divided by, and
// what the gathered gradients must still be multiplied by.
//
// Optimizers do not matter here, and models only tell windows apart. Whether a micro-step completes
// its window is decided when it begins: by the number of micro-steps so far, and by the innermost
// running loop over a prepared loader, whose last batch ends a window early.
//
// A loss is divided by what is known when its backward runs: by the steps of the window, fewer if
// the loader has fewer batches left, and for a sum over items also by the items of the first
// micro-step. What shows only later (the end of a stream, micro-steps without a backward, the total
// of items) is the correction: one factor, applied once to each gradient. So the usual window needs
// no extra pass over its gradients, and gradients of fp16 stay in the range of a mean.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
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

struct WindowRules {
  int64_t steps = 1;
  bool sync_with_dataloader = true;
};

// The mean of a float64 number over all processes, which all call this at the same time. Empty with
// one process.
using MeanOverProcesses = std::function<at::Tensor(const at::Tensor& number)>;

// What the gradients must be multiplied by. On the device where the number is only known there.
struct Correction {
  double factor = 1.0;
  at::Tensor device_factor = {};

  bool is_needed() const { return device_factor.defined() || factor != 1.0; }
};

// What a window has gathered since its gradients were last used. Losses are divided when backward
// runs, by what is known then; the rest is the correction.
struct Gathered {
  int64_t micro_steps = 0;  // in which a backward ran
  int64_t samples = 0;      // of all micro-steps
  bool used = false;        // an optimizer stepped with the gradients, or they were cleared

  enum class Form { none, mean, items };
  Form form = Form::none;
  double divisor = 1.0;            // that losses were divided by
  at::Tensor device_divisor = {};  // in its place, where the first number of items lay on a device
  // Items so far. Gradients are averaged over the processes, so items are too: in the first
  // backward, and the others together when the correction is asked for.
  struct Items {
    double on_host = 0;
    at::Tensor on_device = {};  // to be added; may be undefined
  };
  Items items = {};           // mean over the processes
  Items own_items = {};       // of this process, not yet averaged
  int64_t own_backwards = 0;  // that these are from

  // Tensors whose gradients the correction has been applied to.
  std::unordered_set<const c10::TensorImpl*> corrected = {};
};

// A window and, when it is complete and begun again, the next one over the same models.
struct Window {
  std::vector<const ModelState*> models = {};  // sorted; empty: all

  int64_t micro_steps = 0;  // begun so far
  bool complete = true;     // the latest micro-step is the last
  Gathered gathered = {};

  // The latest micro-step.
  bool in_scope = false;  // it is under way
  bool backward_ran = false;
  bool stepped = false;  // an optimizer did
  int64_t samples = 0;

  // Gradients wait here for the rest of the window, or for the end of its last scope.
  bool is_gathering() const { return gathered.micro_steps > 0 && (in_scope || !complete); }

  // Micro-steps that no update has been made from yet.
  bool has_unused_gradients() const {
    return complete ? gathered.micro_steps > 0 && !gathered.used : micro_steps > 0;
  }

  // All micro-steps have run, but no optimizer has stepped yet.
  bool awaits_step() const {
    return in_scope && complete && backward_ran && !stepped && !gathered.used;
  }
};

void begin_micro_step(Window& window, const WindowRules& rules, const LoaderProgress& loader);
void end_micro_step(Window& window);

// In its place, for a micro-step that an exception ends before an optimizer has stepped: it does
// not count. Returns whether the gradients must be dropped, because none are from earlier
// micro-steps or because they were already made ready for a step.
bool take_back_micro_step(Window& window, bool gradients_were_finished);

// Forgets what was gathered. A micro-step under way becomes the first of its window.
void start_over(Window& window, const WindowRules& rules, const LoaderProgress& loader);

// The loss to run backward on. `window` may be null: then each backward stands for itself.
at::Tensor weigh_mean(Window* window, const at::Tensor& loss);

// As above for a sum over items. A tensor has one element, of an integral type, on any device.
at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, const at::Tensor& num_items,
                       const MeanOverProcesses& mean);
at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, int64_t num_items,
                       const MeanOverProcesses& mean);

// A backward begins whose gradients the window gathers.
void note_backward(Window& window);

// For the gradients of a complete window. Items that are not yet averaged over the processes are
// now.
Correction correction_of(Gathered& gathered, const MeanOverProcesses& mean);

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

  const std::shared_ptr<Window>& shared_latest() const { return latest_; }

  // The same while its scope is open, else null.
  Window* open() const { return latest_ && latest_->in_scope ? latest_.get() : nullptr; }

  // Whether any window is.
  bool is_gathering() const;

  // All of them, in the order in which they were made.
  const std::vector<std::shared_ptr<Window>>& windows() const { return windows_; }

  // A window goes on that was saved: it becomes the latest.
  void go_on_with(std::shared_ptr<Window> window) { latest_ = std::move(window); }

  // All windows start over.
  void start_over(const WindowRules& rules, const LoaderProgress& loader);

  // The model is gone: so are the windows over it.
  void forget(const ModelState& model);

  void clear();

 private:
  std::vector<std::shared_ptr<Window>> windows_;
  std::shared_ptr<Window> latest_;
};

}  // namespace accelerant::detail
