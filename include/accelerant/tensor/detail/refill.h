// Takes the tensors out of nested data and puts others in their place. For code that is compiled
// once, for lists of tensors:
//
//   return refilled(data, exchanged(tensors_in(data)));
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "accelerant/tensor/nested.h"

namespace accelerant::detail {

// In the order of visit_tensors.
template <class T>
std::vector<at::Tensor> tensors_in(const T& data) {
  std::vector<at::Tensor> tensors;
  visit_tensors(data, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

// The data with these tensors in place of its own, in the order of visit_tensors. There must be as
// many.
template <class T>
T refilled(const T& data, const std::vector<at::Tensor>& tensors) {
  std::size_t next = 0;
  return map_tensors(data, [&](const at::Tensor&) { return tensors[next++]; });
}

// The data with undefined tensors, which keep no memory alive.
template <class T>
T emptied(const T& data) {
  return map_tensors(data, [](const at::Tensor&) { return at::Tensor(); });
}

}  // namespace accelerant::detail
