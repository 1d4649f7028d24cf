// Pinned host memory that kernels of our own read or write.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace accelerant::compat {

// The memory is not handed out to others before the stream has done what is queued on it now, even if the tensor is
// gone by then. torch's own copies see to that by themselves.
inline void hold_for(const c10::Stream& stream, const at::Tensor& pinned) {
  const c10::DataPtr& memory = pinned.storage().data_ptr();
  at::getHostAllocator(stream.device_type())
      ->record_event(memory.get(), memory.get_context(), stream);
}

}  // namespace accelerant::compat
