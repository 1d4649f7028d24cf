// Moves tensors to another device, in place: modules, optimizers and all other owners of a tensor
// keep it. Unlike set_data(), it also moves from and to the meta device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>

#include <unordered_map>

namespace accelerant {

// Whether the tensor is there already. A device without index stands for all of its kind.
bool is_on(const at::Tensor& tensor, c10::Device device);

// Tensors that share a storage share the new one too, if one StorageMove moves them: tied weights
// stay tied, and views stay views.
class StorageMove {
 public:
  explicit StorageMove(c10::Device device) : device_(device) {}

  // Whether a tensor has a storage to be moved; sparse and quantised ones do not.
  static bool can_move(const at::Tensor& tensor);

  // Allocates the new memory, also for the gradient, and copies the bytes, and changes no tensor.
  // What can fail for lack of memory fails here. Returns the tensor as it will be, for who fills
  // it.
  at::Tensor prepare(const at::Tensor& tensor);

  // Moves a tensor and its gradient. From the meta device a tensor gets uninitialised memory; a
  // gradient without values is dropped.
  void move(const at::Tensor& tensor);

 private:
  struct Moved {
    // Held so that another storage cannot get the same address.
    c10::weak_intrusive_ptr<c10::StorageImpl> from;
    c10::Storage to;
  };

  const c10::Storage& moved(const at::Tensor& tensor);
  at::Tensor there(const at::Tensor& tensor);

  c10::Device device_;
  std::unordered_map<const c10::StorageImpl*, Moved> storages_;
};

}  // namespace accelerant
