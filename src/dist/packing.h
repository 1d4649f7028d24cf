// Several tensors in one exchange. The latency of an exchange is large compared to a small tensor,
// so small ones travel together in a flat buffer; large ones travel alone and are not copied.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <vector>

namespace accelerant::dist {

// Positions in a list of tensors that are exchanged at once. The same on all processes if the
// shapes are.
using Pack = std::vector<std::size_t>;

// Tensors of one pack have the same device and type. Undefined and empty tensors are left out: Gloo
// fails on empty exchanges.
std::vector<Pack> packs_of(const std::vector<at::Tensor>& tensors);

// The content of a tensor as bytes, one-dimensional and contiguous; a view if possible.
at::Tensor as_bytes(const at::Tensor& tensor);

// The one-dimensional tensors of a pack, one after another.
at::Tensor joined(const std::vector<at::Tensor>& tensors, const Pack& pack);

// Throws Error for tensors that are not plain arrays (sparse, quantized).
void require_plain(const char* name, const std::vector<at::Tensor>& tensors);

}  // namespace accelerant::dist
