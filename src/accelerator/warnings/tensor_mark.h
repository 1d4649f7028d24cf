// How the watches notice that a tensor was written to, without looking at its values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

namespace torch::optim {
class Optimizer;
}

namespace accelerant::detail {

// A tensor, and what changes when it is written to.
struct TensorMark {
  const c10::TensorImpl* tensor = nullptr;  // null: undefined
  int64_t version = 0;
  std::size_t values = 0;  // of a parameter on the CPU

  bool operator==(const TensorMark&) const = default;
};

TensorMark mark_of(const at::Tensor& tensor);

// The same, with a few of its values if it is on the CPU: libtorch's SGD writes past the version
// counter.
TensorMark mark_of_parameter(const at::Tensor& parameter);

// The parameter that stands for all of the optimizer's; undefined if none is trained.
at::Tensor witness_of(torch::optim::Optimizer& optimizer);

}  // namespace accelerant::detail
