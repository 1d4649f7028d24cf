#include "paging/mapped_file.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "accelerant/core/error.h"
#include "paging/unlocked.h"
#include "store/parallel_reads.h"
#include "tensor/tensor_dtype.h"

namespace accelerant::paging {
namespace {

constexpr std::size_t staging_bytes = std::size_t{1} << 20;
constexpr int most_staging_threads = 8;

std::string form_of(const format::TensorInfo& tensor) {
  return c10::str(format::dtype_name(tensor.dtype), " ", c10::IntArrayRef(tensor.shape));
}

}  // namespace

// One thread copies more slowly than a GPU reads, so several copy pieces to pinned buffers, from which
// the device reads meanwhile. The buffers are small and used in turn, so they stay in the processor's
// cache.
class ModelFiles::Staging {
 public:
  explicit Staging(c10::Device device)
      : device_(device),
        threads_(std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1,
                            most_staging_threads)) {}

  void copy(std::span<const std::byte> bytes, const at::Tensor& target) {
    const c10::Stream stream = c10::impl::getDeviceGuardImpl(device_.type())->getStream(device_);
    const std::size_t pieces = (bytes.size() + staging_bytes - 1) / staging_bytes;
    checkpoint::run_in_parallel(pieces, threads_, [&](std::size_t i) {
      const OrdinaryMode ordinary;
      const c10::StreamGuard guard(stream);
      const std::size_t begin = i * staging_bytes;
      const std::size_t count = std::min(staging_bytes, bytes.size() - begin);
      copy_piece(bytes.subspan(begin, count), stream,
                 target.narrow(0, static_cast<int64_t>(begin), static_cast<int64_t>(count)));
    });
  }

 private:
  struct Buffer {
    at::Tensor memory = {};
    std::optional<c10::Event> is_free = {};
  };

  void copy_piece(std::span<const std::byte> bytes, const c10::Stream& stream,
                  const at::Tensor& target) {
    Buffer buffer = take();
    std::memcpy(buffer.memory.mutable_data_ptr(), bytes.data(), bytes.size());
    target.copy_(buffer.memory.narrow(0, 0, static_cast<int64_t>(bytes.size())),
                 /*non_blocking=*/true);
    buffer.is_free->record(stream);
    const std::lock_guard lock(mutex_);
    buffers_.push_back(std::move(buffer));
  }

  // A buffer that nothing reads: twice as many as threads, so that the oldest is rarely waited for.
  Buffer take() {
    Buffer buffer;
    {
      const std::lock_guard lock(mutex_);
      if (made_ == 2 * threads_) {
        buffer = std::move(buffers_.front());
        buffers_.pop_front();
      } else {
        ++made_;
      }
    }
    if (buffer.is_free) {
      buffer.is_free->synchronize();
    } else {
      buffer.memory = at::empty({static_cast<int64_t>(staging_bytes)},
                                at::TensorOptions().dtype(at::kByte).pinned_memory(true));
      buffer.is_free.emplace(device_.type());
    }
    return buffer;
  }

  c10::Device device_;
  int threads_;
  std::mutex mutex_;
  std::deque<Buffer> buffers_;  // the oldest first
  int made_ = 0;
};

ModelFiles::ModelFiles(std::map<std::string, FileTensor> tensors) : tensors_(std::move(tensors)) {}
ModelFiles::~ModelFiles() = default;

const FileTensor& ModelFiles::tensor_of(const UnitLayout& layout, const UnitPart& part) const {
  const auto found = std::ranges::find_if(
      part.names, [&](const std::string& name) { return tensors_.contains(name); });
  if (found == part.names.end()) {
    throw Error(ErrorDetails{
        .problem = c10::str("The files have no tensor for a parameter of \"", layout.name, "\""),
        .expected = c10::str("one for \"", part.names.front(), "\""),
        .got = "none",
        .hint = "give a file's tensor for it, or leave it out of the unit"});
  }
  const FileTensor& tensor = tensors_.at(*found);
  const format::TensorInfo& info = tensor.file->info(tensor.name);
  const bool fits = torch_dtype(info.dtype) == part.dtype && info.shape == part.sizes;
  if (!fits || !part.is_whole || info.bytes() != part.bytes) {
    throw Error(ErrorDetails{
        .problem =
            c10::str("The parameter \"", *found, "\" cannot be paged from ", tensor.file->label()),
        .expected = fits ? std::string("a contiguous parameter with memory of its own")
                         : c10::str(part.dtype, " ", c10::IntArrayRef(part.sizes)),
        .got = fits ? std::string("one that is strided, or that shares its memory") : form_of(info),
        .hint = "give the model the types and shapes of the file, or load the parameter"});
  }
  return tensor;
}

void ModelFiles::copy(std::span<const std::byte> bytes, const at::Tensor& target) {
  if (target.is_cpu()) {
    std::memcpy(target.mutable_data_ptr(), bytes.data(), bytes.size());
    return;
  }
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Staging>& staging = staging_[target.device()];
  if (!staging) staging = std::make_unique<Staging>(target.device());
  staging->copy(bytes, target);
}

MappedFile::MappedFile(std::shared_ptr<ModelFiles> files) : files_(std::move(files)) {}

std::string MappedFile::describe() const { return "mapped files"; }

void MappedFile::check(const UnitLayout& layout) const {
  for (const UnitPart& part : layout.parts) {
    const FileTensor& tensor = files_->tensor_of(layout, part);
    tensor.file->view(tensor.name);  // throws if the file is not mapped
  }
}

std::optional<LentMemory> MappedFile::lend(const UnitLayout& layout, c10::Device device) {
  if (!device.is_cpu()) return std::nullopt;
  LentMemory lent{.is_writable = false, .owner = files_};
  for (const UnitPart& part : layout.parts) {
    const FileTensor& tensor = files_->tensor_of(layout, part);
    const std::byte* const bytes = tensor.file->view(tensor.name).data();
    // Files of other writers need not align tensors; elements must be.
    if (reinterpret_cast<std::uintptr_t>(bytes) % c10::elementSize(part.dtype) != 0) {
      return std::nullopt;
    }
    lent.parts.push_back(const_cast<std::byte*>(bytes));
  }
  return lent;
}

void MappedFile::fetch(const UnitLayout& layout, const at::Tensor& block) {
  for (const UnitPart& part : layout.parts) {
    const FileTensor& tensor = files_->tensor_of(layout, part);
    files_->copy(tensor.file->view(tensor.name), block.narrow(0, static_cast<int64_t>(part.offset),
                                                              static_cast<int64_t>(part.bytes)));
  }
}

}  // namespace accelerant::paging
