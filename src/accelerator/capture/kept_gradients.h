// Gradients at fixed addresses.
//
// If a step creates, uses and drops its gradients, they are in the memory of its graph. If they
// live longer, because a window spans several steps or the program does not clear them, all graphs
// must add to the same memory, which belongs to none of them: the tensors that autograd created
// while the step ran eagerly.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

namespace accelerant::detail {

struct Core;

class KeptGradients {
 public:
  // Keeps the current gradients at their addresses.
  void keep_present(const Core& core);

  // Puts back gradients that were dropped (as zeros) or replaced (with the new values).
  void attach() const;

  // Puts back the kept tensors without copying values, and removes all other gradients: undoes what
  // a capture did to them.
  void put_back(const Core& core) const;

  // Whether all parameters have exactly the gradients that are kept.
  bool are_all_there(const Core& core) const;

  // For owners that need them longer than the program does.
  std::vector<at::Tensor> tensors() const;

 private:
  struct Kept {
    at::Tensor parameter;
    at::Tensor gradient;
  };
  std::unordered_map<const c10::TensorImpl*, Kept> kept_;  // by parameter
};

// Whether any prepared parameter has a gradient.
bool has_any_gradient(const Core& core);

void drop_all_gradients(const Core& core);

}  // namespace accelerant::detail
