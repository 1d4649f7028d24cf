// A tensor of the same form and memory with other dispatch keys. Replacing a parameter's metadata
// by such an alias gives it a key or takes it away.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <utility>

namespace accelerant::paging {

// Without the checks of the memory, which may be absent.
inline c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// `form`: sizes, strides and type of the alias.
inline at::Tensor alias_of_storage(c10::Storage storage, const at::Tensor& form,
                                   c10::DispatchKeySet keys) {
  auto alias = c10::make_intrusive<c10::TensorImpl>(std::move(storage), keys, form.dtype());
  alias->set_storage_offset(form.storage_offset());
  alias->set_sizes_and_strides(form.sizes(), form.strides());
  return at::Tensor(std::move(alias));
}

inline at::Tensor alias_with_keys(const at::Tensor& tensor, c10::DispatchKeySet keys) {
  return alias_of_storage(tensor.unsafeGetTensorImpl()->unsafe_storage(), tensor, keys);
}

}  // namespace accelerant::paging
