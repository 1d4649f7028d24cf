#include "tensor/storage_move.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set.h>

#include <cstdint>
#include <utility>

namespace accelerant {
namespace {

at::Tensor bytes_of(const c10::Storage& storage, c10::Device device) {
  const auto size = static_cast<int64_t>(storage.nbytes());
  const at::Tensor bytes = at::empty({0}, at::TensorOptions(device).dtype(at::kByte));
  return bytes.set_(storage, 0, {size}, {1});
}

// Undefined if there is none, or it is there already, or has no values that could go there.
at::Tensor gradient_to_move(const at::Tensor& tensor, c10::Device device) {
  const at::Tensor& gradient = tensor.grad();
  const bool moves = StorageMove::can_move(gradient) && !is_on(gradient, device) &&
                     (!gradient.is_meta() || device.is_meta());
  return moves ? gradient : at::Tensor();
}

}  // namespace

bool is_on(const at::Tensor& tensor, c10::Device device) {
  return tensor.device().type() == device.type() &&
         (!device.has_index() || tensor.device().index() == device.index());
}

bool StorageMove::can_move(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.is_quantized();
}

const c10::Storage& StorageMove::moved(const at::Tensor& tensor) {
  const c10::Storage& from = tensor.storage();
  const auto known = storages_.find(from.unsafeGetStorageImpl());
  if (known != storages_.end()) return known->second.to;
  const bool has_values = !tensor.is_meta() && !device_.is_meta();
  const at::Tensor to = has_values ? bytes_of(from, tensor.device())
                                         .to(device_, at::kByte, /*non_blocking=*/false,
                                             /*copy=*/true)
                                   : at::empty({static_cast<int64_t>(from.nbytes())},
                                               at::TensorOptions(device_).dtype(at::kByte));
  Moved entry{.from = from.getWeakStorageImpl(), .to = to.storage()};
  return storages_.emplace(from.unsafeGetStorageImpl(), std::move(entry)).first->second.to;
}

at::Tensor StorageMove::there(const at::Tensor& tensor) {
  return at::empty({0}, tensor.options().device(device_).requires_grad(false))
      .set_(moved(tensor), tensor.storage_offset(), tensor.sizes(), tensor.strides());
}

at::Tensor StorageMove::prepare(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor gradient = gradient_to_move(tensor, device_);
  if (gradient.defined()) moved(gradient);
  return there(tensor);
}

void StorageMove::move(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor moved_tensor = there(tensor);
  const at::Tensor gradient = gradient_to_move(tensor, device_);
  // set_data() refuses another kind of device, and resets the node that accumulates gradients.
  tensor.unsafeGetTensorImpl()->shallow_copy_from(moved_tensor.getIntrusivePtr());
  tensor.set_data(moved_tensor);
  if (gradient.defined()) {
    move(gradient);
  } else if (tensor.grad().defined() && tensor.grad().is_meta() && !device_.is_meta()) {
    tensor.mutable_grad().reset();
  }
}

}  // namespace accelerant
