// Gradients at addresses that stay.
//
// A step whose gradients are made, used and dropped within it has them in the memory of its graph.
// Where they live longer, since a window goes on over several steps or the program does not clear
// them, all graphs must add to the same memory, which belongs to none of them: the tensors that
// autograd made while the step ran eagerly.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

namespace accelerant::detail {

struct Core;

class KeptGradients {
 public:
  // The gradients that are there now stay where they are.
  void keep_present(const Core& core);

  // Puts those back in their places that were dropped or replaced since, with the values that count
  // now.
  void attach() const;

  // The same without their values, and nothing else: what a capture has done to gradients is void.
  void put_back(const Core& core) const;

  // Whether all parameters have the gradients that are kept, and no others.
  bool are_all_there(const Core& core) const;

  // For whoever needs them longer than the program.
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
