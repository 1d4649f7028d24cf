// Notices what happens to an optimizer's parameters and gradients behind the Accelerator's back:
// the original optimizer or model used in the loop, or calls in the wrong order.
//
// It looks at the version counters of one parameter and of its gradient, and on the CPU at a few of
// its values, so it costs nothing however large the model is, and never waits for the device.
#pragma once

#include <cstdint>
#include <vector>

#include "accelerator/warnings/tensor_mark.h"

namespace accelerant::detail {

struct Core;
struct Window;
class ModelState;

class OptimizerWatch {
 public:
  explicit OptimizerWatch(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  // Around every backward. `window`: the open one if it is the optimizer's, else null.
  void before_backward(Core& core, const Window* window);
  void after_backward(const Core& core, const Window* window);

  // The prepared optimizer was asked to step, due or not.
  void note_call() { was_called_ = true; }

  // A step will use gradients that no step has used. `models`: those the optimizer owns parameters
  // of. `backwards`: of all backwards of the Accelerator, how many had run by the last step.
  void before_step(Core& core, const std::vector<const ModelState*>& models,
                   int64_t backwards) const;

  // A step found no gradients, or only those that zero_grad() had filled with zeros.
  void note_empty_step(Core& core, int64_t backwards);

  void after_step();

  // Parameters or gradients have changed in a way that is fine: what was seen of them does not
  // count any more.
  void start_over();

 private:
  void look_for_foreign_update(Core& core);
  void look_for_lost_gradients(Core& core, const Window& window) const;

  torch::optim::Optimizer& optimizer_;
  bool was_called_ = false;     // step() was, ever
  bool has_stepped_ = false;    // with gradients
  bool had_gradients_ = false;  // after one of the backwards before the first step

  bool has_backward_ = false;          // one ran since the last step
  TensorMark parameter_;               // after it
  int64_t updates_ = 0;                // of all prepared optimizers, by then
  int foreign_updates_ = 0;            // seen so far
  int empty_steps_ = 0;                // before the first with gradients
  bool is_empty_step_ = false;         // the one under way
  TensorMark gradient_;                // after the last backward in `gathering_`
  const Window* gathering_ = nullptr;  // the window that is not complete; null: none
};

}  // namespace accelerant::detail
