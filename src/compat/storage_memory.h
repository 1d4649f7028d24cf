// Taking the memory of a storage away and giving it back, while tensors keep the storage.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <string>
#include <utility>

#include "compat/torch_version.h"

namespace accelerant::compat {

#if !ACCELERANT_TORCH_AT_LEAST(2, 13)
namespace detail {

// Before 2.13 nothing resets this member. Access checks do not apply to the template arguments of
// an explicit instantiation, which hands the member's address to the function below.
bool& throws_on_access(c10::StorageImpl& storage);

template <bool c10::StorageImpl::*member>
struct ThrowsOnAccess {
  friend bool& throws_on_access(c10::StorageImpl& storage) { return storage.*member; }
};
template struct ThrowsOnAccess<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

}  // namespace detail
#endif

// Frees the memory. The size stays, because views check their bounds against it. From now on
// reading the address throws `message`.
inline void take_memory(c10::StorageImpl& storage, std::string message) {
  const c10::Device device = storage.device();
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(std::move(message));
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, device));
}

// Makes `memory` the memory of a storage, whether or not it has had some.
inline void give_memory(c10::StorageImpl& storage, c10::DataPtr&& memory) {
#if ACCELERANT_TORCH_AT_LEAST(2, 13)
  storage.clear_data_ptr_access_error_msg_();
#else
  detail::throws_on_access(storage) = false;
#endif
  storage.set_data_ptr_noswap(std::move(memory));
}

// The address without the checks that throw, so nullptr if the memory was taken.
inline const void* address_of(c10::StorageImpl& storage) {
  return storage._mutable_data_ptr_no_checks().get();
}

}  // namespace accelerant::compat
