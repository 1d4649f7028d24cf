// Pinned host memory that kernels of our own read or write.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include "accelerant/core/error.h"

namespace accelerant::compat {

// When the tensor is gone, the memory is not handed out to others before the stream has done what was queued on it until
// then. torch's own copies see to that by themselves.
inline void hold_for(const c10::Stream& stream, const at::Tensor& pinned) {
  const c10::DataPtr& memory = pinned.storage().data_ptr();
  const bool is_known = at::getHostAllocator(stream.device_type())
                            ->record_event(memory.get(), memory.get_context(), stream);
  if (!is_known) throw Error("Host memory that a kernel is to write is not pinned");
}

}  // namespace accelerant::compat
