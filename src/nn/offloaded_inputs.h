// Inputs of a checkpoint in host memory between its forward and its backward.
//
// They are copied on a stream of their own, out and back. Backward reaches the checkpoints of a
// forward in reverse order, so each brings back the inputs of the one before while it computes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <vector>

namespace accelerant::nn::detail {

// For tests: inputs on the CPU are copied as if they were on another device.
bool& offloads_on_every_device();

// While it lives, checkpoints in this thread offload their inputs unless their options say
// otherwise.
class ActivationOffloadScope {
 public:
  explicit ActivationOffloadScope(bool on);
  ~ActivationOffloadScope();
  ActivationOffloadScope(const ActivationOffloadScope&) = delete;
  ActivationOffloadScope& operator=(const ActivationOffloadScope&) = delete;

  static bool is_on();

 private:
  bool before_;
};

class OffloadedInputs : public std::enable_shared_from_this<OffloadedInputs> {
 public:
  // The next in this thread's forward.
  static std::shared_ptr<OffloadedInputs> next();

  // Whether the tensor is worth it: a result of the forward that nothing else need keep, on another
  // device, not tiny, and not in a CUDA graph that is being captured.
  static bool takes(const at::Tensor& input);

  // Lets autograd keep the input here.
  void keep(torch::autograd::SavedVariable& saved);

  // Backward needs the inputs: begins to bring them back, and after them those of the checkpoint
  // before.
  void bring_back();

 private:
  class Input;
  class Hooks;

  void begin_fetching();

  std::weak_ptr<OffloadedInputs> before_;
  std::vector<std::shared_ptr<Input>> inputs_;
  std::mutex mutex_;  // backward uses one thread per device
};

}  // namespace accelerant::nn::detail
