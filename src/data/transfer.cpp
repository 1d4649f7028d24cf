#include "accelerant/data/detail/transfer.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"
#include "compat/device.h"

namespace accelerant::data::detail {
namespace {

c10::impl::VirtualGuardImpl guard_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type());
}

// Adds the index of the current device if it is missing.
c10::Device complete(c10::Device device) {
  if (device.is_cpu() || device.has_index() || !compat::is_present(device.type())) return device;
  return guard_of(device).getDevice();
}

}  // namespace

struct Transfer::Stream {
  c10::Stream stream;
};

struct Arrival {
  explicit Arrival(const c10::Stream& stream) : event(stream.device_type()) {
    event.record(stream);
  }
  c10::Event event;
};

Transfer::Transfer(const Placement& placement)
    : device_(complete(placement.device)),
      moves_(placement.move),
      non_blocking_(placement.non_blocking) {
  if (!moves_ || device_.is_cpu()) return;
  if (!compat::is_present(device_.type())) {
    throw Error(ErrorDetails{.problem = "The loader cannot move its batches to the device",
                             .expected = "a device that this machine and this libtorch support",
                             .got = device_.str()});
  }
  if (non_blocking_ && device_.is_cuda()) {
    side_stream_ =
        std::make_unique<Stream>(Stream{guard_of(device_).getStreamFromGlobalPool(device_)});
  }
}

Transfer::~Transfer() = default;

at::Tensor Transfer::pin(const at::Tensor& tensor) const {
  const bool can_be_pinned = tensor.defined() && tensor.device().is_cpu() &&
                             tensor.layout() == at::kStrided && !tensor.is_pinned();
  return can_be_pinned ? tensor.pin_memory() : tensor;
}

at::Tensor Transfer::copy(const at::Tensor& tensor) const {
  if (!tensor.defined() || tensor.device() == device_) return tensor;
  return tensor.to(device_, non_blocking_);
}

bool Transfer::is_on_accelerator(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.device().is_cpu();
}

std::shared_ptr<Arrival> Transfer::record_current(c10::Device device) {
  if (!device.is_cuda()) return nullptr;
  return std::make_shared<Arrival>(guard_of(device).getStream(device));
}

void Transfer::wait_for(const Arrival& arrival) {
  const c10::Device device = arrival.event.device();
  arrival.event.block(guard_of(device).getStream(device));
}

// The memory belongs to the stream that made it; it must not be reused before the current stream
// has read it.
void Transfer::use_on_current(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cuda()) return;
  tensor.record_stream(guard_of(tensor.device()).getStream(tensor.device()));
}

void Transfer::refuse_unknown_batch() const {
  if (device_.is_cpu()) return;
  throw Error(ErrorDetails{.problem = "The loader cannot find the tensors in its batches",
                           .expected =
                               "tensors, standard containers, or structs that name their fields "
                               "(visit_fields, see tensor/nested.h)",
                           .got = "a batch of another type",
                           .hint = "name its fields, or place the loader with .move = false"});
}

Transfer::SideStream::SideStream(const Transfer& transfer, const Arrival* made)
    : transfer_(transfer) {
  if (!transfer.copies_ahead()) {
    if (made != nullptr) wait_for(*made);
    return;
  }
  const auto guard = guard_of(transfer.device_);
  const c10::Stream& side = transfer.side_stream_->stream;
  if (made != nullptr) made->event.block(side);
  before_ = std::make_unique<Stream>(Stream{guard.exchangeStream(side)});
}

Transfer::SideStream::~SideStream() {
  if (before_) guard_of(transfer_.device_).exchangeStream(before_->stream);
}

std::shared_ptr<Arrival> Transfer::SideStream::finish() const {
  return std::make_shared<Arrival>(transfer_.side_stream_->stream);
}

}  // namespace accelerant::data::detail
