#include "checkpoint/tensor_copy.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <optional>

#include "accelerant/core/error.h"
#include "format/plain_tensor.h"
#include "paging/residency.h"
#include "store/parallel_reads.h"
#include "tensor/tensor_dtype.h"

namespace accelerant::checkpoint {
namespace {

// Usually enough to saturate the memory: with 16 cores, 16 threads reach 60 GB/s and 8 reach 40.
constexpr int kMostThreads = 16;

constexpr std::uint64_t kPieceOfStrided = 4 << 20;  // bytes

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// What is copied are a tensor's bytes, so its form must be known and the same.
void require_same_form(const TensorCopy& copy) {
  const c10::IntArrayRef shape = copy.stored->shape;
  if (archive_type(copy.stored->dtype) && copy.target.sizes() == shape) return;
  throw Error(ErrorDetails{
      .problem = copy.file->path() + ": tensor '" + copy.stored->name + "' cannot be loaded",
      .expected = c10::str("a type that torch supports, and the shape ", copy.target.sizes()),
      .got = c10::str(copy.stored->dtype, " ", shape),
      .hint = "`accelerant inspect` shows what is in the file"});
}

bool is_as_stored(const TensorCopy& copy) {
  return copy.target.scalar_type() == *archive_type(copy.stored->dtype) &&
         copy.target.is_contiguous() && !copy.target.is_conj() && !copy.target.is_neg();
}

// Fills tensors on a GPU through two buffers: while one is copied to the GPU, the other is filled.
class DeviceReader {
 public:
  void read(const TensorCopy& copy) {
    const at::Tensor bytes = copy.target.flatten().view(at::kByte);
    for (int64_t done = 0; done < bytes.numel();) {
      if (filled_ == kSize || bytes.device() != device_) send(bytes.device());
      const int64_t size = std::min(kSize - filled_, bytes.numel() - done);
      const at::Tensor piece = buffer().narrow(0, filled_, size);
      reads_.push_back({copy.file, copy.stored, static_cast<uint64_t>(done), bytes_of(piece)});
      sends_.push_back({piece, bytes.narrow(0, done, size)});
      filled_ = std::min(kSize, (filled_ + size + kAlignment - 1) / kAlignment * kAlignment);
      done += size;
    }
  }

  void finish() {
    send(device_);
    for (auto& event : copied_) {
      if (event) event->synchronize();
    }
  }

 private:
  static constexpr int64_t kSize = 32 << 20;
  static constexpr int64_t kAlignment = 64;

  struct Send {
    at::Tensor from = {};
    at::Tensor to = {};
  };

  const at::Tensor& buffer() {
    if (!buffers_[turn_].defined()) {
      buffers_[turn_] =
          at::empty({kSize}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    }
    return buffers_[turn_];
  }

  // Reads and sends the contents planned for the buffer, and continues with the other one, for
  // tensors on `next_device`.
  void send(c10::Device next_device) {
    if (!sends_.empty()) {
      read_all(reads_, reading_threads());
      for (const Send& one : sends_) one.to.copy_(one.from, /*non_blocking=*/true);
      copied_[turn_].emplace(device_.type());
      copied_[turn_]->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
      reads_.clear();
      sends_.clear();
      filled_ = 0;
      turn_ = 1 - turn_;
      if (copied_[turn_]) copied_[turn_]->synchronize();
    }
    device_ = next_device;
  }

  std::array<at::Tensor, 2> buffers_;
  std::array<std::optional<c10::Event>, 2> copied_;  // one per buffer
  std::size_t turn_ = 0;
  int64_t filled_ = 0;
  c10::Device device_ = at::kCPU;  // device of the buffered tensors
  std::vector<TensorRead> reads_;
  std::vector<Send> sends_;
};

void convert(const TensorCopy& copy) {
  const auto type = *archive_type(copy.stored->dtype);
  const at::Tensor whole = new_tensor(copy.target.sizes(), type,
                                      copy.file->path() + ": tensor '" + copy.stored->name + "'");
  read_all({{copy.file, copy.stored, 0, bytes_of(whole)}}, reading_threads());
  copy.target.copy_(whole);
}

}  // namespace

int reading_threads() { return std::min(at::get_num_threads(), kMostThreads); }

void read_tensors(const std::vector<TensorCopy>& copies) {
  for (const TensorCopy& copy : copies) require_same_form(copy);
  std::vector<TensorRead> direct;
  DeviceReader to_devices;
  for (const TensorCopy& copy : copies) {
    if (copy.target.numel() == 0) continue;
    const bool has_plain_memory =
        (copy.target.is_cpu() || copy.target.is_cuda()) && !paging::is_paged(copy.target);
    if (!is_as_stored(copy) || !has_plain_memory) {
      convert(copy);
    } else if (copy.target.is_cuda()) {
      to_devices.read(copy);
    } else {
      direct.push_back({copy.file, copy.stored, 0, bytes_of(copy.target)});
    }
  }
  to_devices.finish();
  read_all(direct, reading_threads());
}

at::Tensor new_tensor(at::IntArrayRef shape, c10::ScalarType type, const std::string& where) {
  try {
    return at::empty(shape, at::TensorOptions().dtype(type));
  } catch (const std::exception&) {
    // torch says neither which tensor it is nor where it comes from.
    double bytes = static_cast<double>(c10::elementSize(type));
    for (const int64_t size : shape) bytes *= static_cast<double>(size);
    throw Error(ErrorDetails{.problem = where + " does not fit into the memory",
                             .got = c10::str(bytes, " bytes for the shape ", shape)});
  }
}

void for_each_piece(const at::Tensor& tensor,
                    const std::function<void(std::span<const std::byte>)>& take) {
  if (tensor.numel() == 0) return;
  const paging::Residency residency{at::TensorList(tensor)};
  const auto name = archive_type_name(tensor.scalar_type());
  const bool is_plain = tensor.is_cpu() && !tensor.is_conj() && !tensor.is_neg() && name;
  if (!is_plain || tensor.is_contiguous()) {
    const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
    take({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
    return;
  }
  // Gathered piece by piece: an expanded tensor may be far larger than its memory.
  int64_t reach = 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) reach += (tensor.size(i) - 1) * tensor.stride(i);
  const auto memory =
      std::as_bytes(std::span(static_cast<const char*>(tensor.const_data_ptr()),
                              static_cast<std::size_t>(reach) * tensor.element_size()));
  format::PlainTensor view;
  view.dtype = *name;
  view.shape = tensor.sizes().vec();
  view.strides = tensor.strides().vec();
  view.storage = std::make_shared<format::PlainStorage>(memory);
  const std::uint64_t size = format::bytes_in_rows(view);
  std::vector<std::byte> piece(std::min<std::uint64_t>(size, kPieceOfStrided));
  for (std::uint64_t done = 0; done < size; done += piece.size()) {
    const auto part = std::span(piece).first(std::min<std::uint64_t>(piece.size(), size - done));
    format::read_in_rows(view, done, part);
    take(part);
  }
}

}  // namespace accelerant::checkpoint
