#include "accelerator/capture/step_tensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>

namespace accelerant::detail {
namespace {

// A layout with gaps or overlaps is not worth keeping.
at::Tensor buffer_for(const at::Tensor& input) {
  if (!input.defined()) return {};
  const at::NoGradGuard no_grad;
  return input.is_non_overlapping_and_dense()
             ? at::empty_strided(input.sizes(), input.strides(), input.options())
             : at::empty_like(input, at::MemoryFormat::Contiguous);
}

}  // namespace

Tensors on_device(Tensors inputs, c10::Device device) {
  for (at::Tensor& input : inputs) {
    if (input.defined() && input.device() != device)
      input = input.to(device, /*non_blocking=*/true);
  }
  return inputs;
}

Tensors buffers_for(const Tensors& inputs) {
  Tensors buffers;
  for (const at::Tensor& input : inputs) buffers.push_back(buffer_for(input));
  return buffers;
}

void fill(const Tensors& buffers, const Tensors& inputs) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].defined()) buffers[i].copy_(inputs[i], /*non_blocking=*/true);
  }
}

Tensors copies_of(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  Tensors copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.defined() ? tensor.clone() : at::Tensor());
  }
  return copies;
}

bool is_elsewhere(const Tensors& tensors, c10::Device device) {
  return std::ranges::any_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.device().type() != device.type();
  });
}

}  // namespace accelerant::detail
