// Exchanges between processes: of tensors, of what a metric needs, of JSON values and of bytes.
// Names and meaning are those of Accelerate. Every process must call them in the same order.
//
// Those of tensors take nested data (tensor/nested.h) and keep its structure:
//
//   auto all = dist::gather(world, std::tuple{predictions, labels});  // rows of all, rank by rank
//   at::Tensor loss = dist::reduce(world, loss, {.reduction = dist::Reduction::mean});
//   auto same_length = dist::pad_across_processes(world, tokens, {.dim = 1, .pad_index = -100});
//
// The data must be of the same structure, types and, but for pad_across_processes, shapes in all
// processes. That is checked: they first exchange what they have, in one small message over the CPU
// that never waits for a GPU, and where they differ all of them throw an Error that lists what each
// one has. Otherwise they would wait for each other, or worse, until the timeout.
//
// Results are not recorded by autograd, but for pad_across_processes. In one process everything is
// given back as it is, but for reduce, which always makes new tensors.
//
// JSON values and bytes may be of any size, and different ones on each process:
//
//   auto all = dist::gather_object(world, {{"rank", world.rank()}, {"loss", 0.5}});
//   nlohmann::json settings = world.rank() == 0 ? read() : nlohmann::json();
//   dist::broadcast_object(world, settings);                     // now the same everywhere
//
// They go over the CPU and never wait for a GPU.
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

// --- Tensors ---

enum class Reduction { sum, mean, max, min, product };

struct ReduceOptions {
  // Default: sum, as Accelerator.reduce; accelerate.utils.reduce takes the mean.
  Reduction reduction = Reduction::sum;
  // What the result is multiplied by. Default: 1, which changes nothing.
  double scale = 1.0;
};

struct PadAcrossOptions {
  // The dimension whose size may differ. Tensors that do not have it are left alone. Negative: from
  // the end. Default: the first.
  int64_t dim = 0;
  // What the added elements are. Default: 0.
  c10::Scalar pad_index = 0;
  // Add them in front. Default: false, at the end.
  bool pad_first = false;
};

namespace detail {

using accelerant::detail::refilled;

// The tensors of nested data in the order they are visited, and how it is built.
struct Bundle {
  std::vector<at::Tensor> tensors = {};
  std::string structure = {};  // with kTensorMark in place of each tensor
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

// The tensors of all processes, joined along the first dimension in the order of the ranks, on
// every process. Those without dimensions become a tensor with one element for each process.
template <NestedTensors T>
T gather(const World& world, const T& data) {
  if (world.size() == 1) return data;
  return detail::refilled(data, detail::gather(world, detail::bundle_of(data)));
}

// Combines the tensors of all processes element by element. The argument is not changed. Integers
// are exact and wrap around like torch's; their mean, and a scale, give float32. A sum or maximum
// of bools is "or", a product or minimum "and", a mean the share of true (float32).
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

// Makes tensors as long as the longest of all processes, so that they can be gathered. The types
// stay.
template <NestedTensors T>
T pad_across_processes(const World& world, const T& data, const PadAcrossOptions& options = {}) {
  if (world.size() == 1) return data;
  return detail::refilled(data,
                          detail::pad_across_processes(world, detail::bundle_of(data), options));
}

// --- JSON values and bytes ---

// The values of all processes in the order of their ranks, on every process. In one process a list
// of the one value, where Accelerate gives the value itself.
std::vector<nlohmann::json> gather_object(const World& world, const nlohmann::json& value);

// Joins the lists of all processes, as Accelerate's gather_object does.
std::vector<nlohmann::json> gather_object_list(const World& world,
                                               const std::vector<nlohmann::json>& values);

// The same for bytes, which a string may well hold.
std::vector<std::string> gather_bytes(const World& world, const std::string& bytes);

// Gives every process the value of one of them.
void broadcast_object(const World& world, nlohmann::json& value, int64_t from_process = 0);

// Gives every process the list of one of them; what the others had, and how long, does not matter.
void broadcast_object_list(const World& world, std::vector<nlohmann::json>& values,
                           int64_t from_process = 0);

// The same for bytes.
void broadcast_bytes(const World& world, std::string& bytes, int64_t from_process = 0);

// --- Metrics: each sample of the data set once ---

// The last round of batches is completed with samples that were there before, so that all processes
// have as many. Gathered as they are, these would count twice. gather_for_metrics drops them, given
// the rows of the batch that is being processed:
//
//   const dist::BatchRows rows{.here = state.current_rows(),
//                              .total = state.rows_to_keep(),
//                              .everywhere = state.all_have_batch()};
//   auto [predicted, wanted] = dist::gather_for_metrics(world, rows, std::tuple{output, labels});
//
// Accelerator::gather_for_metrics asks the running loader for them.
struct BatchRows {
  // Rows of this process's batch, those that only complete it included.
  int64_t here = 0;
  // Samples of the batches of all processes, those that only complete them not counted. 0: not
  // known, then nothing is dropped.
  int64_t total = 0;
  // Every process has a batch. If not, some have ended their loop and would not take part: an
  // Error. Default: true.
  bool everywhere = true;
};

namespace detail {
std::vector<at::Tensor> gather_for_metrics(const World& world, const BatchRows& rows,
                                           const Bundle& data);
}

// As gather, and of tensors that have a row for each sample only the first rows.total are kept.
// They are told by their first dimension: on every process it must be rows.here. All other tensors
// (losses, tables) are gathered whole. Unlike in gather, the number of rows may differ between
// processes (even_batches off, batches of different lengths); without shuffling the result is in
// the order of the data set.
template <NestedTensors T>
T gather_for_metrics(const World& world, const BatchRows& rows, const T& data) {
  return detail::refilled(data, detail::gather_for_metrics(world, rows, detail::bundle_of(data)));
}

// The same for lists of JSON values, one for each row, on all processes. Lists of another length
// are joined whole.
std::vector<nlohmann::json> gather_objects_for_metrics(const World& world, const BatchRows& rows,
                                                       const std::vector<nlohmann::json>& values);

// --- For other parts of the library: small exchanges that are not compared between processes ---

// One tensor in place, over the group of the training; it may be on the World's device or the CPU.
void all_reduce_(const World& world, const at::Tensor& tensor,
                 Reduction reduction = Reduction::sum);

// The same over the group for control messages; the tensor must be on the CPU.
void all_reduce_control_(const World& world, const at::Tensor& tensor,
                         Reduction reduction = Reduction::sum);

// Whether it is true on any of the processes. `name`, a literal, is what messages call it.
bool any(const World& world, bool here, const char* name = "any");

}  // namespace accelerant::dist
