#include "paging/side_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "compat/device.h"

namespace accelerant::paging {

SideStream::SideStream(c10::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

c10::Stream SideStream::current() const {
  return c10::impl::getDeviceGuardImpl(device_.type())->getStream(device_);
}

bool SideStream::is_capturing() const { return compat::current_capture(device_) != 0; }

void SideStream::wait_for(const c10::Stream& stream) {
  c10::Event event(device_.type());
  event.record(stream);
  event.block(*stream_);
}

void SideStream::mark(std::optional<c10::Event>& event) const {
  if (!stream_) return;
  if (!event) event.emplace(device_.type());
  event->record(*stream_);
}

void SideStream::synchronize() const {
  if (stream_) stream_->synchronize();
}

}  // namespace accelerant::paging
