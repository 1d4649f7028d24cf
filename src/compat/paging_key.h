// The dispatch key of parameters whose memory comes and goes (src/paging).
//
// libtorch reserves it for programs outside of it and does not use it itself. Here, because what
// works on addresses must recognise such parameters without knowing how they come and go.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

namespace accelerant::compat {

inline constexpr c10::DispatchKey paging_key = c10::DispatchKey::DeferredInit;

inline bool has_paging_key(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has(paging_key);
}

}  // namespace accelerant::compat
