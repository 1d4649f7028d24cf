#include "accelerant/dist/collectives.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"
#include "dist/agreement.h"
#include "dist/gather_tensors.h"
#include "dist/packing.h"

namespace accelerant::dist {
namespace {

using nlohmann::json;

bool has_rows(const at::Tensor& tensor, int64_t rows) {
  return tensor.defined() && tensor.dim() > 0 && tensor.size(0) == rows;
}

// Rows of a tensor on each process.
std::vector<int64_t> rows_of(const std::vector<View>& views, std::size_t tensor) {
  std::vector<int64_t> rows;
  for (const View& view : views) rows.push_back(view.tensors[tensor].sizes.front());
  return rows;
}

// Whether, on every process, the first dimension is as long as its batch has rows.
bool is_batch_everywhere(const std::vector<View>& views, std::size_t tensor) {
  return std::all_of(views.begin(), views.end(), [&](const View& view) {
    const TensorView& seen = view.tensors[tensor];
    return seen.defined && !seen.sizes.empty() && seen.sizes.front() == view.numbers.front();
  });
}

// Compares all sizes, except the first one for batches.
bool fits(const TensorView& a, const TensorView& b, bool is_batch) {
  const std::ptrdiff_t from = is_batch ? 1 : 0;
  return std::equal(a.sizes.begin() + from, a.sizes.end(), b.sizes.begin() + from, b.sizes.end());
}

// The real rows of a tensor gathered from padded parts.
at::Tensor without_padding(const at::Tensor& gathered, const std::vector<int64_t>& rows,
                           int64_t longest) {
  std::vector<at::Tensor> parts;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    const int64_t begin = static_cast<int64_t>(rank) * longest;
    parts.push_back(gathered.slice(0, begin, begin + rows[rank]));
  }
  return at::cat(parts);
}

at::Tensor first_rows(const at::Tensor& tensor, const BatchRows& rows) {
  return rows.total > 0 ? tensor.slice(0, 0, rows.total) : tensor;
}

void require_same_total(const std::vector<View>& views) {
  for (const View& view : views) {
    if (view.numbers.back() == views.front().numbers.back()) continue;
    refuse_views(views, "gather_for_metrics of different batches",
                 "the same step of the same loader on all processes", "");
  }
}

void require_all_processes(const BatchRows& rows) {
  if (rows.everywhere) return;
  throw Error(ErrorDetails{
      .problem = "gather_for_metrics was called in a step in which not every process has a batch",
      .expected = "all processes to take part",
      .got = "an epoch with an uneven end",
      .hint = "turn even_batches on: gather_for_metrics drops the samples it adds"});
}

}  // namespace

std::vector<at::Tensor> detail::gather_for_metrics(const World& world, const BatchRows& rows,
                                                   const Bundle& data) {
  std::vector<at::Tensor> tensors = data.tensors;
  if (world.size() == 1) {
    for (at::Tensor& tensor : tensors) {
      if (has_rows(tensor, rows.here)) tensor = first_rows(tensor, rows);
    }
    return tensors;
  }
  require_all_processes(rows);
  require_plain("gather_for_metrics", tensors);
  const auto views = exchange_views(world, "gather_for_metrics", data, {rows.here, rows.total});
  require_same_total(views);
  std::vector<bool> is_batch;
  std::vector<int64_t> longest(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    is_batch.push_back(is_batch_everywhere(views, i));
    for (const View& view : views) {
      if (fits(view.tensors[i], views.front().tensors[i], is_batch[i])) continue;
      refuse_views(views, "gather_for_metrics of tensors whose shapes differ",
                   "the same shapes on all processes, except for the rows of a batch",
                   "pad them to the same shape with pad_across_processes first");
    }
    if (!is_batch[i]) continue;
    const std::vector<int64_t> counts = rows_of(views, i);
    longest[i] = *std::max_element(counts.begin(), counts.end());
    tensors[i] = padded_along(tensors[i].detach(), 0, longest[i]);
  }
  std::vector<at::Tensor> results = gather_tensors(world, "gather_for_metrics", tensors);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!is_batch[i]) continue;
    const std::vector<int64_t> counts = rows_of(views, i);
    const bool padded = std::any_of(counts.begin(), counts.end(),
                                    [&](int64_t count) { return count != longest[i]; });
    if (padded) results[i] = without_padding(results[i], counts, longest[i]);
    results[i] = first_rows(results[i], rows);
  }
  return results;
}

std::vector<json> gather_objects_for_metrics(const World& world, const BatchRows& rows,
                                             const std::vector<json>& values) {
  require_all_processes(rows);
  bool is_batch = true;
  std::vector<json> joined;
  for (json& part : gather_object(world, json{rows.here, values})) {
    is_batch = is_batch && part.at(0).get<int64_t>() == static_cast<int64_t>(part.at(1).size());
    for (json& value : part.at(1)) joined.push_back(std::move(value));
  }
  const auto total = static_cast<std::size_t>(rows.total);
  if (is_batch && total > 0 && total < joined.size()) joined.resize(total);
  return joined;
}

}  // namespace accelerant::dist
