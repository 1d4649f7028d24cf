// Exchanges between processes: of tensors, of what a metric needs, of JSON values and of bytes.
// Names and meanings are those of Accelerate. Every process must call them in the same order.
//
// Functions for tensors take nested data (tensor/nested.h) and keep its structure:
//
//   auto all = dist::gather(world, std::tuple{predictions, labels});  // rows of all, rank by rank
//   at::Tensor loss = dist::reduce(world, loss, {.reduction = dist::Reduction::mean});
//   auto same_length = dist::pad_across_processes(world, tokens, {.dim = 1, .pad_index = -100});
//
// The data must have the same structure, types and (except for pad_across_processes) shapes in all
// processes. This is checked: processes first exchange descriptions of their data, in one small
// message over the CPU that never waits for a GPU. If the descriptions differ, all processes throw
// an Error that lists them. Otherwise processes would wait for each other until the timeout, or
// worse.
//
// Results are not recorded by autograd, except for pad_across_processes. A single process gets its
// data back unchanged, except that reduce always creates new tensors.
//
// JSON values and bytes may have any size, and differ between processes:
//
//   auto all = dist::gather_object(world, {{"rank", world.rank()}, {"loss", 0.5}});
//   nlohmann::json settings = world.rank() == 0 ? read() : nlohmann::json();
//   dist::broadcast_object(world, settings);                     // now the same everywhere
//
// They travel over the CPU and never wait for a GPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "accelerant/dist/world.h"
#include "accelerant/tensor/detail/nested_describe.h"
#include "accelerant/tensor/detail/refill.h"
#include "accelerant/tensor/nested.h"

namespace accelerant::dist {

// --- Tensors -------------------------------------------------------------------------------------

enum class Reduction { sum, mean, max, min, product };

struct ReduceOptions {
  // How to combine the tensors. Default: sum, like Accelerator.reduce; accelerate.utils.reduce
  // defaults to the mean.
  Reduction reduction = Reduction::sum;
  // A factor for the result. Default: 1.
  double scale = 1.0;
};

struct PadAcrossOptions {
  // The dimension whose size may differ; negative numbers count from the end. Tensors that lack it
  // are left unchanged. Default: 0, the first.
  int64_t dim = 0;
  // The value of the added elements. Default: 0.
  c10::Scalar pad_index = 0;
  // Add them at the beginning instead of the end. Default: false.
  bool pad_first = false;
};

namespace detail {

using accelerant::detail::refilled;

// The tensors of nested data in the order of visiting, and its structure.
struct Bundle {
  std::vector<at::Tensor> tensors = {};
  std::string structure = {};  // with kTensorMark for each tensor
};

inline constexpr char kTensorMark = '\x01';

template <NestedTensors T>
Bundle bundle_of(const T& data) {
  return {.tensors = accelerant::detail::tensors_in(data),
          .structure = accelerant::detail::describe_nesting(
              data, [](const at::Tensor&) { return kTensorMark; })};
}

std::vector<at::Tensor> gather(const World& world, const Bundle& data);
std::vector<at::Tensor> reduce(const World& world, const Bundle& data,
                               const ReduceOptions& options);
void broadcast(const World& world, const Bundle& data, int64_t from_process);
std::vector<at::Tensor> pad_across_processes(const World& world, const Bundle& data,
                                             const PadAcrossOptions& options);

}  // namespace detail

// The tensors of all processes, on every process, joined along the first dimension in rank order.
// Tensors without dimensions become one tensor with one element per process.
template <NestedTensors T>
T gather(const World& world, const T& data) {
  if (world.size() == 1) return data;
  return detail::refilled(data, detail::gather(world, detail::bundle_of(data)));
}

// Combines the tensors of all processes element by element. The argument is not changed. Integers
// are exact and wrap around as in torch; their mean, and a scale, give float32. For bools, a sum or
// maximum is "or", a product or minimum is "and", and a mean is the fraction of true values
// (float32).
template <NestedTensors T>
T reduce(const World& world, const T& data, const ReduceOptions& options = {}) {
  return detail::refilled(data, detail::reduce(world, detail::bundle_of(data), options));
}

// Writes the tensors of one process into those of all others, in place, and returns the data.
template <NestedTensors T>
T broadcast(const World& world, const T& data, int64_t from_process = 0) {
  detail::broadcast(world, detail::bundle_of(data), from_process);
  return data;
}

// Pads tensors to the longest of all processes, so that they can be gathered. Keeps their types.
template <NestedTensors T>
T pad_across_processes(const World& world, const T& data, const PadAcrossOptions& options = {}) {
  if (world.size() == 1) return data;
  return detail::refilled(data,
                          detail::pad_across_processes(world, detail::bundle_of(data), options));
}

// --- JSON values and bytes -----------------------------------------------------------------------

// The values of all processes, on every process, in rank order. A single process gets a list of its
// one value, where Accelerate returns the value itself.
std::vector<nlohmann::json> gather_object(const World& world, const nlohmann::json& value);

// Joins the lists of all processes, like Accelerate's gather_object.
std::vector<nlohmann::json> gather_object_list(const World& world,
                                               const std::vector<nlohmann::json>& values);

// The same for bytes; a string may hold any bytes.
std::vector<std::string> gather_bytes(const World& world, const std::string& bytes);

// Gives every process the value of one process.
void broadcast_object(const World& world, nlohmann::json& value, int64_t from_process = 0);

// Gives every process the list of one process; what the other lists held does not matter.
void broadcast_object_list(const World& world, std::vector<nlohmann::json>& values,
                           int64_t from_process = 0);

// The same for bytes.
void broadcast_bytes(const World& world, std::string& bytes, int64_t from_process = 0);

// --- Metrics: every sample of the data set exactly once ------------------------------------------

// The last round of batches is completed with samples from the beginning, so that all processes
// have the same number. Plain gathering would count these twice. gather_for_metrics drops them,
// given the rows of the current batch:
//
//   const dist::BatchRows rows{.here = state.current_rows(),
//                              .total = state.rows_to_keep(),
//                              .everywhere = state.all_have_batch()};
//   auto [predicted, wanted] = dist::gather_for_metrics(world, rows, std::tuple{output, labels});
//
// Accelerator::gather_for_metrics gets them from the running loader.
struct BatchRows {
  // Rows of this process's batch, including those that only complete it.
  int64_t here = 0;
  // Samples in the batches of all processes, not counting those that only complete them. 0 means
  // unknown: nothing is dropped.
  int64_t total = 0;
  // Whether every process has a batch. If not, some have ended their loop and would not take part,
  // which is an Error. Default: true.
  bool everywhere = true;
};

namespace detail {
std::vector<at::Tensor> gather_for_metrics(const World& world, const BatchRows& rows,
                                           const Bundle& data);
}

// Like gather, but keeps only the first rows.total rows of tensors with one row per sample. These
// are recognised by their first dimension, which must be rows.here on every process. All other
// tensors (losses, tables) are gathered completely. Unlike in gather, the number of rows may differ
// between processes (even_batches off, batches of different lengths). Without shuffling, the result
// is in the order of the data set.
template <NestedTensors T>
T gather_for_metrics(const World& world, const BatchRows& rows, const T& data) {
  return detail::refilled(data, detail::gather_for_metrics(world, rows, detail::bundle_of(data)));
}

// The same for lists of JSON values, with one value per row on all processes. Lists of another
// length are joined completely.
std::vector<nlohmann::json> gather_objects_for_metrics(const World& world, const BatchRows& rows,
                                                       const std::vector<nlohmann::json>& values);

// --- For other parts of the library: small exchanges without checks ------------------------------

// Reduces one tensor in place, over the group for data; it may be on the World's device or the CPU.
void all_reduce_(const World& world, const at::Tensor& tensor,
                 Reduction reduction = Reduction::sum);

// The same over the group for control messages; the tensor must be on the CPU.
void all_reduce_control_(const World& world, const at::Tensor& tensor,
                         Reduction reduction = Reduction::sum);

// Whether `here` is true on any process. Messages call the exchange `name`, a literal.
bool any(const World& world, bool here, const char* name = "any");

}  // namespace accelerant::dist
