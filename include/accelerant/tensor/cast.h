// Casts of nested data.
#pragma once

#include "accelerant/tensor/nested.h"

namespace accelerant {

// The same structure with every float16 and bfloat16 tensor as float32; all else is untouched, and
// tensors that need no cast are shared, not copied. Autograd records the cast. This is what
// Accelerate does to the outputs of a model that ran under autocast.
template <class T>
T to_float32(const T& outputs) {
  static_assert(
      UnderstoodNesting<T>,
      "to_float32: this type may hold tensors that cannot be seen; give it a static "
      "visit_fields or specialise accelerant::NestedFields (see accelerant/tensor/nested.h)");
  return map_tensors(outputs, [](const at::Tensor& tensor) {
    const bool is_16_bit = tensor.defined() && (tensor.scalar_type() == at::kHalf ||
                                                tensor.scalar_type() == at::kBFloat16);
    return is_16_bit ? tensor.to(at::kFloat) : tensor;
  });
}

}  // namespace accelerant
