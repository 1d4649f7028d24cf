#include "dist/packing.h"

#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <map>
#include <utility>

#include "accelerant/core/error.h"

namespace accelerant::dist {
namespace {

constexpr std::size_t kLargeBytes = 1 << 20;

}  // namespace

std::vector<Pack> packs_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Pack> packs;
  std::map<std::pair<c10::DeviceType, at::ScalarType>, std::size_t> open;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    if (!tensor.defined() || tensor.numel() == 0) continue;
    if (tensor.nbytes() >= kLargeBytes) {
      packs.push_back({i});
      continue;
    }
    const auto [found, is_new] =
        open.try_emplace({tensor.device().type(), tensor.scalar_type()}, packs.size());
    if (is_new) packs.emplace_back();
    packs[found->second].push_back(i);
  }
  return packs;
}

at::Tensor as_bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg().contiguous();
  return plain.flatten().view(at::kByte);
}

at::Tensor joined(const std::vector<at::Tensor>& tensors, const Pack& pack) {
  if (pack.size() == 1) return tensors[pack.front()];
  std::vector<at::Tensor> parts;
  for (const std::size_t i : pack) parts.push_back(tensors[i]);
  return at::cat(parts);
}

void require_plain(const char* name, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || (tensor.layout() == at::kStrided && !tensor.is_quantized())) continue;
    throw Error(ErrorDetails{.problem = c10::str(name, " cannot exchange this tensor"),
                             .expected = "a dense tensor",
                             .got = tensor.toString(),
                             .hint = "convert it first, with to_dense() or dequantize()"});
  }
}

}  // namespace accelerant::dist
