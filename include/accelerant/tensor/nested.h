// Nested data: tensors inside the containers and structs that models and loaders return, and
// operations on all of them at once.
//
//   visit_tensors(outputs, [](const at::Tensor& t) { ... });
//   auto halves = map_tensors(outputs, [](const at::Tensor& t) { return t.to(at::kHalf); });
//   auto batch = concatenate(std::vector{first, second});
//   batch = slice_tensors(batch, 0, find_batch_size(batch) / 2);
//   batch = send_to_device(batch, device, /*non_blocking=*/true);
//
// Supported at any depth: at::Tensor, std::vector, std::array, std::tuple, std::pair,
// std::optional, std::map, std::unordered_map (keys are kept, and visited in order), and structs
// that name their fields:
//
//   struct Output {
//     at::Tensor logits;
//     std::optional<at::Tensor> loss;
//     static void visit_fields(auto& self, auto&& visit) { visit(self.logits); visit(self.loss); }
//   };
//
// A derived struct must name all fields again. For a struct that you cannot change, specialise
// NestedFields:
//
//   template <>
//   struct accelerant::NestedFields<Output> {
//     static void visit(auto& self, auto&& visitor) { visitor(self.logits); visitor(self.loss); }
//   };
//
// Everything else (numbers, strings, ...) is a leaf and is kept unchanged. A class that names no
// fields may hold hidden tensors: most functions do not compile with it.
//
// Operations on batches treat the first dimension of every tensor as the rows of the batch. A
// tensor without dimensions, such as a loss, has no rows: slicing and padding leave it unchanged.
// Names and meanings are those of accelerate.utils, whose recursively_apply is map_tensors here.
// All operations keep structure, keys and everything that is not a tensor, pass undefined tensors
// through, and are recorded by autograd. Parts that need no change are shared, not copied.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/tensor/detail/children.h"
#include "accelerant/tensor/detail/nested_zip.h"

namespace accelerant {

namespace detail {

template <class T>
struct OnlyTensors : std::is_same<T, at::Tensor> {};
template <HasChildren T>
struct OnlyTensors<T> : std::bool_constant<Children<T>::template all<OnlyTensors>> {};

template <class T>
struct Understood : std::bool_constant<!std::is_class_v<T> || std::same_as<T, at::Tensor> ||
                                       std::is_convertible_v<T, std::string_view>> {};
template <HasChildren T>
struct Understood<T> : std::bool_constant<Children<T>::template all<Understood>> {};

// Calls f with every tensor in `value`, which may be const or not.
template <class T, class F>
void walk_tensors(T& value, F&& f) {
  using Plain = std::remove_const_t<T>;
  if constexpr (std::same_as<Plain, at::Tensor>) {
    f(value);
  } else if constexpr (HasChildren<Plain>) {
    Children<Plain>::visit(value, [&](auto& child) { walk_tensors(child, f); });
  }
}

}  // namespace detail

// Data in which all tensors can be found: no part of it is an unknown class.
template <class T>
concept UnderstoodNesting = detail::Understood<T>::value;

// A tensor, or a container or struct that holds only tensors.
template <class T>
concept NestedTensors = detail::OnlyTensors<T>::value;

// Calls f with every tensor in `value`, in order.
template <class T, class F>
void visit_tensors(const T& value, F&& f) {
  detail::walk_tensors(value, f);
}

// A copy of `value` in which every tensor t is f(t); the structure and all other leaves are kept.
template <class T, class F>
T map_tensors(const T& value, F&& f) {
  T result = value;
  detail::walk_tensors(result, [&](at::Tensor& tensor) { tensor = f(std::as_const(tensor)); });
  return result;
}

// Converts every float16 and bfloat16 tensor to float32. Accelerate does this to the outputs of a
// model that ran under autocast.
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

struct PadInputOptions {
  // What the added rows contain: zeros, as in Accelerate, or the first rows, repeated as often as
  // needed. Default: zeros.
  enum class Fill { zeros, first_rows };
  Fill fill = Fill::zeros;

  // The dimension of the rows; negative numbers count from the end. Tensors that lack it are left
  // unchanged. Default: 0.
  int64_t dim = 0;
};

namespace detail {

at::Tensor moved(const at::Tensor& tensor, c10::Device device, bool non_blocking);
at::Tensor sliced(const at::Tensor& tensor, int64_t begin, int64_t end);
at::Tensor padded(const at::Tensor& tensor, int64_t multiple, const PadInputOptions& options);
at::Tensor concatenated(const std::vector<const at::Tensor*>& tensors, int64_t dim);
void require_items(std::size_t count);
[[noreturn]] void refuse_without_batch();

}  // namespace detail

// Moves every tensor to a device. non_blocking: the copy may continue after the call (CUDA, from
// pinned memory).
template <UnderstoodNesting T>
T send_to_device(const T& data, c10::Device device, bool non_blocking = false) {
  return map_tensors(
      data, [&](const at::Tensor& tensor) { return detail::moved(tensor, device, non_blocking); });
}

// The device of the first tensor; empty if there is none.
template <UnderstoodNesting T>
std::optional<c10::Device> find_device(const T& data) {
  std::optional<c10::Device> device;
  visit_tensors(data, [&](const at::Tensor& tensor) {
    if (!device && tensor.defined()) device = tensor.device();
  });
  return device;
}

// The number of rows of the first tensor that has any dimension; empty if there is none.
template <UnderstoodNesting T>
std::optional<int64_t> ignorant_find_batch_size(const T& data) {
  std::optional<int64_t> rows;
  visit_tensors(data, [&](const at::Tensor& tensor) {
    if (!rows && tensor.defined() && tensor.dim() > 0) rows = tensor.size(0);
  });
  return rows;
}

// The same; throws Error if there is none.
template <UnderstoodNesting T>
int64_t find_batch_size(const T& data) {
  const std::optional<int64_t> rows = ignorant_find_batch_size(data);
  if (!rows) detail::refuse_without_batch();
  return *rows;
}

// The rows begin ... end - 1 of every tensor, as a view. As in Python, negative numbers count from
// the end, and ranges outside are clipped.
template <UnderstoodNesting T>
T slice_tensors(const T& data, int64_t begin, int64_t end) {
  return map_tensors(data,
                     [&](const at::Tensor& tensor) { return detail::sliced(tensor, begin, end); });
}

// Pads the rows of every tensor to a multiple of `multiple` (in Accelerate, the number of
// processes), adding as few rows as possible; an empty tensor stays empty. Accelerate adds a wrong
// number in some cases, such as 7 rows for 4.
template <UnderstoodNesting T>
T pad_input_tensors(const T& data, int64_t multiple, const PadInputOptions& options = {}) {
  return map_tensors(
      data, [&](const at::Tensor& tensor) { return detail::padded(tensor, multiple, options); });
}

// Joins batches of the same structure, tensor by tensor. Returns a single batch unchanged. Throws
// Error if there is none, if lengths or keys differ, or if anything that is not a tensor differs.
template <UnderstoodNesting T>
T concatenate(const std::vector<T>& batches, int64_t dim = 0) {
  detail::require_items(batches.size());
  if (batches.size() == 1) return batches.front();
  std::vector<const T*> items;
  for (const T& batch : batches) items.push_back(&batch);
  return detail::zip_tensors(items, [&](const std::vector<const at::Tensor*>& tensors) {
    return detail::concatenated(tensors, dim);
  });
}

}  // namespace accelerant
