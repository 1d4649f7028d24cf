// Gathers what a metric needs, each sample of the data set once.
//
// The last round of batches is completed with samples that were there before, so that all processes have
// as many. Gathered as they are, these would count twice. Here they are dropped:
//
//   const dist::BatchRows rows{.here = state.current_rows(),
//                              .total = state.rows_to_keep(),
//                              .everywhere = state.all_have_batch()};
//   auto [predicted, wanted] = dist::gather_for_metrics(world, rows, std::tuple{predictions, labels});
//
// Accelerator::gather_for_metrics asks the running loader for the rows.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "accelerant/dist/collectives.h"

namespace accelerant::dist {

// The batch that is being processed.
struct BatchRows {
  // Rows of this process's batch, those that only complete it included.
  int64_t here = 0;
  // Samples of the batches of all processes, those that only complete them not counted. 0: not known,
  // then nothing is dropped.
  int64_t total = 0;
  // Every process has a batch. If not, some have ended their loop and would not take part: an Error.
  // Default: true.
  bool everywhere = true;
};

namespace detail {
std::vector<at::Tensor> gather_for_metrics(const World& world, const BatchRows& rows,
                                           const Bundle& data);
}

// As gather, and of tensors that have a row for each sample only the first rows.total are kept. They are
// told by their first dimension: on every process it must be rows.here. All other tensors (losses, tables) are
// gathered whole. Unlike in gather, the number of rows may differ between processes (even_batches off,
// batches of different lengths); without shuffling the result is in the order of the data set.
template <NestedTensors T>
T gather_for_metrics(const World& world, const BatchRows& rows, const T& data) {
  return detail::with_tensors(data,
                              detail::gather_for_metrics(world, rows, detail::bundle_of(data)));
}

// The same for lists of JSON values, one for each row, on all processes. Lists of another length are
// joined whole.
std::vector<nlohmann::json> gather_objects_for_metrics(const World& world, const BatchRows& rows,
                                                       const std::vector<nlohmann::json>& values);

}  // namespace accelerant::dist
