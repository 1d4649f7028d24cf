#include "paging/mapped_file.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "accelerant/core/error.h"
#include "paging/unlocked.h"
#include "store/parallel_reads.h"
#include "tensor/tensor_dtype.h"

namespace accelerant::paging {
namespace {

// Not quite a MiB: reads of that size and more go through another buffer.
constexpr std::size_t staging_bytes = (std::size_t{1} << 20) - 4096;
constexpr int most_staging_threads = 16;

std::string form_of(const format::TensorInfo& tensor) {
  return c10::str(format::dtype_name(tensor.dtype), " ", c10::IntArrayRef(tensor.shape));
}

}  // namespace

// One thread reads more slowly than a GPU does, so several read pieces into pinned buffers, from
// which the device reads meanwhile. The buffers are small and used in turn, so they stay in the
// processor's cache.
class ModelFiles::Staging {
 public:
  explicit Staging(c10::Device device)
      : device_(device),
        threads_(std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1,
                            most_staging_threads)) {}

  // All of them at once: threads take long to start, compared with reading a small tensor.
  void read(const std::vector<Read>& reads) {
    std::vector<Piece> pieces;
    for (const Read& read : reads) {
      for (std::size_t begin = 0; begin < read.target.nbytes(); begin += staging_bytes) {
        pieces.push_back({&read, begin});
      }
    }
    const c10::Stream stream = c10::impl::getDeviceGuardImpl(device_.type())->getStream(device_);
    checkpoint::run_in_parallel(pieces.size(), threads_, [&](std::size_t i) {
      const OrdinaryMode ordinary;
      const c10::StreamGuard guard(stream);
      read_piece(pieces[i], stream);
    });
  }

 private:
  struct Piece {
    const Read* read;
    std::size_t begin;
  };
  struct Buffer {
    at::Tensor memory;
    c10::Event is_free;
  };
  using Buffers = std::list<Buffer>;

  // A buffer that nothing reads, for one piece. If the piece fails, the buffer is freed, which
  // torch does once nothing reads it.
  class Turn {
   public:
    explicit Turn(Staging& staging) : staging_(staging), buffer_(staging.take()) {}
    ~Turn() { staging_.give_back(buffer_, is_done_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    const at::Tensor& memory() const { return buffer_.front().memory; }
    void wait_until_free() { buffer_.front().is_free.synchronize(); }

    void is_read_on(const c10::Stream& stream) {
      buffer_.front().is_free.record(stream);
      is_done_ = true;
    }

   private:
    Staging& staging_;
    Buffers buffer_;
    bool is_done_ = false;
  };

  void read_piece(const Piece& piece, const c10::Stream& stream) {
    const auto& [tensor, target] = *piece.read;
    const std::size_t count = std::min(staging_bytes, target.nbytes() - piece.begin);
    Turn turn(*this);
    turn.wait_until_free();
    auto* const start = static_cast<std::byte*>(turn.memory().mutable_data_ptr());
    tensor->file->read_part(tensor->name, piece.begin, {start, count});
    target.narrow(0, static_cast<int64_t>(piece.begin), static_cast<int64_t>(count))
        .copy_(turn.memory().narrow(0, 0, static_cast<int64_t>(count)), /*non_blocking=*/true);
    turn.is_read_on(stream);
  }

  // Twice as many buffers as threads, so that the oldest is rarely waited for. A thread has one at
  // a time, so one is free once all are made.
  Buffers take() {
    const std::lock_guard lock(mutex_);
    Buffers taken;
    if (made_ == 2 * threads_) {
      taken.splice(taken.end(), free_, free_.begin());
    } else {
      taken.push_back({at::empty({static_cast<int64_t>(staging_bytes)},
                                 at::TensorOptions().dtype(at::kByte).pinned_memory(true)),
                       c10::Event(device_.type())});
      ++made_;
    }
    return taken;
  }

  void give_back(Buffers& taken, bool is_done) noexcept {
    const std::lock_guard lock(mutex_);
    if (is_done) {
      free_.splice(free_.end(), taken);
    } else {
      --made_;
    }
  }

  c10::Device device_;
  int threads_;
  std::mutex mutex_;
  Buffers free_;  // the oldest first
  int made_ = 0;
};

ModelFiles::ModelFiles(FileTensors tensors) : tensors_(std::move(tensors)) {}
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

void ModelFiles::read(const std::vector<Read>& reads, c10::Device device) {
  if (device.is_cpu()) {
    for (const auto& [tensor, target] : reads) {
      auto* const start = static_cast<std::byte*>(target.mutable_data_ptr());
      tensor->file->read(tensor->name, {start, target.nbytes()});
    }
    return;
  }
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Staging>& staging = staging_[device];
  if (!staging) staging = std::make_unique<Staging>(device);
  staging->read(reads);
}

MappedFile::MappedFile(std::shared_ptr<ModelFiles> files) : files_(std::move(files)) {}

std::string MappedFile::describe() const { return "mapped files"; }

void MappedFile::check(const UnitLayout& layout) const {
  for (const UnitPart& part : layout.parts) {
    const FileTensor& tensor = files_->tensor_of(layout, part);
    tensor.file->view(tensor.name);  // throws if the file is not mapped
  }
}

std::optional<LentMemory> MappedFile::lend(const UnitLayout& layout) {
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
  std::vector<ModelFiles::Read> reads;
  for (const UnitPart& part : layout.parts) {
    reads.push_back(
        {&files_->tensor_of(layout, part),
         block.narrow(0, static_cast<int64_t>(part.offset), static_cast<int64_t>(part.bytes))});
  }
  files_->read(reads, block.device());
}

}  // namespace accelerant::paging
