// Windows of accumulated gradients: which micro-step completes a window, what a loss is divided by,
// and the factor that the accumulated gradients still need.
//
// This code does not know optimizers, and models only identify windows. Whether a micro-step
// completes its window is decided when it begins: by the number of micro-steps so far, and by the
// innermost running loop over a prepared loader, whose last batch ends a window early.
//
// A loss is divided by what is known when its backward runs: by the steps of the window (fewer if
// the loader has fewer batches left) and, for a sum over items, also by the items of the first
// micro-step. What becomes known later (the end of a stream, micro-steps without a backward, the
// total number of items) goes into the correction: one factor, applied once to each gradient. So
// the usual window needs no extra pass over its gradients, and fp16 gradients stay in the range of
// a mean.
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

// Position of the loader, as far as windows need it.
struct LoaderProgress {
  bool is_last = false;                                // the current batch is the epoch's last
  std::optional<int64_t> batches_left = std::nullopt;  // including the current one
  int64_t samples = 0;                                 // in the current batch
};

struct WindowRules {
  int64_t steps = 1;
  bool sync_with_dataloader = true;
};

// Averages a float64 number over all processes, which must all call this at the same time. Empty
// with one process.
using MeanOverProcesses = std::function<at::Tensor(const at::Tensor& number)>;

// The factor for the gradients. It is on the device if the number is only known there.
struct Correction {
  double factor = 1.0;
  at::Tensor device_factor = {};

  bool is_needed() const { return device_factor.defined() || factor != 1.0; }
};

// What a window has accumulated since its gradients were last used. Losses are divided when
// backward runs, by what is known then; the rest is the correction.
struct Gathered {
  int64_t micro_steps = 0;  // in which a backward ran
  int64_t samples = 0;      // of all micro-steps
  bool used = false;        // an optimizer stepped with the gradients, or they were cleared

  enum class Form { none, mean, items };
  Form form = Form::none;
  double divisor = 1.0;            // of the losses
  at::Tensor device_divisor = {};  // used instead if the first number of items is on a device
  // Items so far. Gradients are averaged over the processes, so items are too: those of the first
  // backward at once, the rest together when the correction is computed.
  struct Items {
    double on_host = 0;
    at::Tensor on_device = {};  // to be added; may be undefined
  };
  Items items = {};           // mean over the processes
  Items own_items = {};       // of this process, not yet averaged
  int64_t own_backwards = 0;  // backwards that own_items come from

  // Tensors whose gradients are already corrected.
  std::unordered_set<const c10::TensorImpl*> corrected = {};
};

// A window over a set of models. After it is complete, the same object serves as the next window.
struct Window {
  std::vector<const ModelState*> models = {};  // sorted; empty: all

  int64_t micro_steps = 0;  // begun so far
  bool complete = true;     // the latest micro-step is the last
  Gathered gathered = {};

  // The latest micro-step.
  bool in_scope = false;  // its scope is open
  bool backward_ran = false;
  bool stepped = false;  // an optimizer has stepped
  int64_t samples = 0;

  // Whether gradients wait for the rest of the window, or for the end of its last scope.
  bool is_gathering() const { return gathered.micro_steps > 0 && (in_scope || !complete); }

  // Whether there are micro-steps that are not part of an update yet.
  bool has_unused_gradients() const {
    return complete ? gathered.micro_steps > 0 && !gathered.used : micro_steps > 0;
  }

  // Whether all micro-steps have run, but no optimizer has stepped yet.
  bool awaits_step() const {
    return in_scope && complete && backward_ran && !stepped && !gathered.used;
  }
};

void begin_micro_step(Window& window, const WindowRules& rules, const LoaderProgress& loader);
void end_micro_step(Window& window);

// Called instead of end_micro_step() if an exception ends a micro-step before an optimizer has
// stepped: the micro-step does not count. Returns whether the gradients must be dropped, because
// none come from earlier micro-steps or because they were already prepared for a step.
bool take_back_micro_step(Window& window, bool gradients_were_finished);

// Discards what was accumulated. A running micro-step becomes the first of its window.
void start_over(Window& window, const WindowRules& rules, const LoaderProgress& loader);

// Returns the loss to run backward on. If `window` is null, each backward is a window of its own.
at::Tensor weigh_mean(Window* window, const at::Tensor& loss);

// The same for a sum over items. `num_items` has one element of an integral type, on any device.
at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, const at::Tensor& num_items,
                       const MeanOverProcesses& mean);
at::Tensor weigh_items(Window* window, const at::Tensor& loss_sum, int64_t num_items,
                       const MeanOverProcesses& mean);

// A backward begins whose gradients the window accumulates.
void note_backward(Window& window);

// The correction for the gradients of a complete window. Averages the remaining items over the
// processes.
Correction correction_of(Gathered& gathered, const MeanOverProcesses& mean);

// All windows of an Accelerator.
class Accumulation {
 public:
  // The window over these models, created if new.
  std::shared_ptr<Window> window_of(std::vector<const ModelState*> models);

  // A scope opens. Throws Error if another one is open.
  void enter(std::shared_ptr<Window> window, const WindowRules& rules,
             const LoaderProgress& loader);

  // The window entered last; null before the first.
  Window* latest() const { return latest_.get(); }

  const std::shared_ptr<Window>& shared_latest() const { return latest_; }

  // The latest window if its scope is open, else null.
  Window* open() const { return latest_ && latest_->in_scope ? latest_.get() : nullptr; }

  // Whether any window is accumulating.
  bool is_gathering() const;

  // All windows, in the order of creation.
  const std::vector<std::shared_ptr<Window>>& windows() const { return windows_; }

  // Continues a saved window, which becomes the latest.
  void go_on_with(std::shared_ptr<Window> window) { latest_ = std::move(window); }

  // All windows start over.
  void start_over(const WindowRules& rules, const LoaderProgress& loader);

  // The model is gone: removes the windows over it.
  void forget(const ModelState& model);

  void clear();

 private:
  std::vector<std::shared_ptr<Window>> windows_;
  std::shared_ptr<Window> latest_;
};

}  // namespace accelerant::detail
