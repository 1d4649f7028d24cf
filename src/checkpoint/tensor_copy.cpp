#include "checkpoint/tensor_copy.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>

namespace accelerant::checkpoint {
namespace {

constexpr int64_t kStagingSize = 32 << 20;

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace

void TensorReader::read(TensorFile& file, const StoredTensor& stored, const at::Tensor& target) {
  if (target.numel() == 0) return;
  const bool as_stored = target.scalar_type() == *stored.type && target.is_contiguous() &&
                         !target.is_conj() && !target.is_neg();
  if (as_stored && target.is_cpu()) return file.read(stored, 0, bytes_of(target));
  if (as_stored && target.is_cuda()) return read_to_device(file, stored, target);
  const at::Tensor whole = at::empty(target.sizes(), at::TensorOptions().dtype(*stored.type));
  file.read(stored, 0, bytes_of(whole));
  target.copy_(whole);
}

void TensorReader::read_to_device(TensorFile& file, const StoredTensor& stored,
                                  const at::Tensor& target) {
  const c10::Device device = target.device();
  const c10::impl::VirtualGuardImpl stream_of(device.type());
  const at::Tensor bytes = target.flatten().view(at::kByte);
  std::optional<c10::Event> copied[2];  // out of which staging buffer
  int64_t done = 0;
  for (int turn = 0; done < bytes.numel(); turn = 1 - turn) {
    if (!staging_[turn].defined()) {
      staging_[turn] =
          at::empty({kStagingSize}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    }
    if (copied[turn]) copied[turn]->synchronize();
    const int64_t size = std::min(kStagingSize, bytes.numel() - done);
    const at::Tensor piece = staging_[turn].narrow(0, 0, size);
    file.read(stored, static_cast<uint64_t>(done), bytes_of(piece));
    bytes.narrow(0, done, size).copy_(piece, /*non_blocking=*/true);
    copied[turn].emplace(device.type());
    copied[turn]->record(stream_of.getStream(device));
    done += size;
  }
  // The next tensor takes the buffers again.
  for (auto& event : copied) {
    if (event) event->synchronize();
  }
}

void for_each_piece(const at::Tensor& tensor,
                    const std::function<void(std::span<const std::byte>)>& take) {
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
  take({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
}

}  // namespace accelerant::checkpoint
