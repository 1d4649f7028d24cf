#include "accelerant/dist/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "dist/agreement.h"
#include "dist/gather_tensors.h"
#include "dist/packing.h"
#include "dist/transport.h"

namespace accelerant::dist {
namespace {

// The sizes of a gathered tensor.
std::vector<int64_t> gathered_sizes(const at::Tensor& tensor, int64_t processes) {
  std::vector<int64_t> sizes = tensor.sizes().vec();
  if (sizes.empty()) sizes = {1};
  sizes.front() *= processes;
  return sizes;
}

}  // namespace

std::vector<at::Tensor> gather_tensors(const World& world, const char* name,
                                       const std::vector<at::Tensor>& tensors) {
  // As bytes: a gather need not know the types, so every type is supported.
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(as_bytes(tensor));
  std::vector<at::Tensor> results(tensors.size());
  for (const Pack& pack : packs_of(bytes)) {
    const at::Tensor own = joined(bytes, pack);
    const at::Tensor all = at::empty({world.size(), own.numel()}, own.options());
    all_gather(world, Channel::data, name, all.view({-1}), own);
    int64_t begin = 0;
    for (const std::size_t i : pack) {
      const int64_t end = begin + bytes[i].numel();
      results[i] = all.slice(1, begin, end)
                       .contiguous()
                       .view({-1})
                       .view(tensors[i].scalar_type())
                       .view(gathered_sizes(tensors[i], world.size()));
      begin = end;
    }
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].numel() > 0) continue;
    results[i] = at::empty(gathered_sizes(tensors[i], world.size()), tensors[i].options());
  }
  return results;
}

at::Tensor padded_along(const at::Tensor& tensor, int64_t dim, int64_t size,
                        const c10::Scalar& pad_index, bool pad_first) {
  const int64_t own = tensor.size(dim);
  if (own == size) return tensor;
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = size;
  at::Tensor result = at::full(sizes, pad_index, tensor.options());
  result.narrow(dim, pad_first ? size - own : 0, own).copy_(tensor);
  return result;
}

std::vector<at::Tensor> detail::gather(const World& world, const Bundle& data) {
  require_plain("gather", data.tensors);
  require_same(world, "gather", data,
               "pad them to the same shape with pad_across_processes first, or use "
               "gather_for_metrics for the batches of a loader");
  return gather_tensors(world, "gather", data.tensors);
}

void detail::broadcast(const World& world, const Bundle& data, int64_t from_process) {
  require_rank(world, "broadcast", from_process);
  if (world.size() == 1) return;
  require_plain("broadcast", data.tensors);
  require_same(world, "broadcast", data, "create the target tensors with the same shape",
               {from_process});
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& tensor : data.tensors) bytes.push_back(as_bytes(tensor));
  for (const Pack& pack : packs_of(bytes)) {
    const at::Tensor buffer = joined(bytes, pack);
    broadcast_tensor(world, Channel::data, "broadcast", buffer, from_process);
    if (world.rank() == from_process) continue;
    int64_t begin = 0;
    for (const std::size_t i : pack) {
      const int64_t end = begin + bytes[i].numel();
      const at::Tensor part = buffer.slice(0, begin, end);
      const at::Tensor target = data.tensors[i].detach();
      begin = end;
      if (part.data_ptr() == target.data_ptr()) continue;  // already written in place
      // A copy, because a view as another type must begin at a multiple of its element size.
      target.copy_(part.clone().view(target.scalar_type()).view(target.sizes()));
    }
  }
}

std::vector<at::Tensor> detail::pad_across_processes(const World& world, const Bundle& data,
                                                     const PadAcrossOptions& options) {
  const std::vector<View> views = exchange_views(world, "pad_across_processes", data);
  std::vector<at::Tensor> results = data.tensors;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const int64_t dims = results[i].defined() ? results[i].dim() : 0;
    const int64_t dim = options.dim < 0 ? options.dim + dims : options.dim;
    if (dim < 0 || dim >= dims) continue;
    int64_t longest = 0;
    for (const View& view : views) {
      longest = std::max(longest, view.tensors[i].sizes[static_cast<std::size_t>(dim)]);
    }
    results[i] = padded_along(results[i], dim, longest, options.pad_index, options.pad_first);
  }
  return results;
}

}  // namespace accelerant::dist
