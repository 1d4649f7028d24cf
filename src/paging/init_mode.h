// Sees every operation of a thread while a module is constructed, and brings its parameters to the
// device of the scope.
//
// Modules of libtorch cannot be changed, register_parameter() is not virtual, and a factory such as
// torch::empty() does not say what its result is for. But all operations go through the dispatcher,
// which calls a fallback of ours for a key that this thread includes. It remembers the tensors that
// are created. One that requires grad when an operation uses it has been registered as a
// parameter: it is moved before the operation runs, so that initialisers run on the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "tensor/storage_move.h"

namespace accelerant::paging {

class InitMode {
 public:
  // Throws Error if the dispatcher cannot be used for it.
  InitMode(c10::Device device, bool include_buffers);
  ~InitMode();
  InitMode(const InitMode&) = delete;
  InitMode& operator=(const InitMode&) = delete;

  bool include_buffers() const { return include_buffers_; }

  // Runs an operation, given its arguments on the stack.
  void run(const c10::OperatorHandle& op, torch::jit::Stack* stack);

  // Moves the parameters that have been created so far.
  void settle();

  // Moves a tensor if it was created in this scope.
  void settle(const at::Tensor& tensor);

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
  class Call;

  bool is_new(const at::Tensor& tensor) const;
  bool is_to_move(const at::Tensor& tensor) const;
  void remember(const at::Tensor& tensor, bool has_new_storage);
  bool run_lazily(Call& call);
  void avoid_random_numbers(Call& call);
  bool run_permutation(Call& call);

  c10::Device device_;
  bool include_buffers_;
  InitMode* outer_;
  StorageMove move_;
  // What was created here. The weak pointers keep addresses from being used again.
  std::unordered_map<const c10::TensorImpl*, WeakTensor> created_ = {};
  // What torch::tensor({...}) returns is not the tensor that its operations created.
  std::unordered_map<const c10::StorageImpl*, WeakStorage> storages_ = {};
  std::size_t unsettled_bytes_ = 0;
  std::optional<c10::impl::IncludeDispatchKeyGuard> included_ = std::nullopt;
};

}  // namespace accelerant::paging
