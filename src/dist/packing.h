// Several tensors in one exchange. Each exchange costs a latency that is large against a small
// tensor, so small ones travel together in a flat buffer; large ones go alone and are not copied.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <vector>

namespace accelerant::dist {

// Positions in a list of tensors that are exchanged at once. The same on all processes if shapes
// are.
using Pack = std::vector<std::size_t>;

// Tensors of one pack have the same device and type. Undefined and empty ones are in none: Gloo
// fails on exchanges of nothing.
std::vector<Pack> packs_of(const std::vector<at::Tensor>& tensors);

// The content of a tensor as bytes, one-dimensional and contiguous; a view where that is possible.
at::Tensor as_bytes(const at::Tensor& tensor);

// The tensors of a pack, which are one-dimensional, one after the other.
at::Tensor joined(const std::vector<at::Tensor>& tensors, const Pack& pack);

// An Error for tensors that are not plain arrays (sparse, quantized).
void require_plain(const char* name, const std::vector<at::Tensor>& tensors);

}  // namespace accelerant::dist
