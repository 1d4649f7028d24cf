#include "checkpoint/host_snapshot.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "checkpoint/shared_tensors.h"

namespace accelerant::checkpoint {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t padded(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void HostSnapshot::reserve(std::size_t bytes, bool pinned) {
  if (memory_.defined() && memory_.nbytes() >= bytes && (memory_.is_pinned() || !pinned)) return;
  memory_.reset();  // first, so that both never exist at once
  memory_ = at::empty({static_cast<int64_t>(bytes)},
                      at::TensorOptions().dtype(at::kByte).pinned_memory(pinned));
}

std::vector<StatePart> HostSnapshot::take(const std::vector<StatePart>& parts) {
  std::size_t bytes = 0;
  std::vector<c10::Device> devices;
  for (const StatePart& part : parts) {
    for (const auto& item : part.state.tensors) {
      bytes += padded(item.value().nbytes());
      const c10::Device device = item.value().device();
      if (!device.is_cpu() && std::ranges::find(devices, device) == devices.end()) {
        devices.push_back(device);
      }
    }
  }
  reserve(bytes, !devices.empty());

  auto* place = static_cast<std::byte*>(memory_.mutable_data_ptr());
  std::vector<StatePart> copies;
  for (const StatePart& part : parts) {
    StatePart copy{.name = part.name, .state = {.values = part.state.values}};
    std::map<std::string, at::Tensor> by_name;
    for (const auto& names : names_of_each(part.state.tensors)) {
      const at::Tensor& tensor = part.state.tensors[names.front()];
      const at::Tensor target = at::from_blob(
          place, tensor.sizes(), [memory = memory_](void*) {}, tensor.scalar_type());
      target.copy_(tensor.detach(), /*non_blocking=*/true);
      place += padded(tensor.nbytes());
      for (const std::string& name : names) by_name[name] = target;
    }
    for (const auto& item : part.state.tensors) {
      copy.state.tensors.insert(item.key(), by_name[item.key()]);
    }
    copies.push_back(std::move(copy));
  }
  copied_.clear();
  for (const c10::Device device : devices) {
    c10::Event event(device.type());
    event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    copied_.push_back(std::move(event));
  }
  return copies;
}

void HostSnapshot::wait_until_copied() {
  for (const c10::Event& event : copied_) event.synchronize();
}

}  // namespace accelerant::checkpoint
