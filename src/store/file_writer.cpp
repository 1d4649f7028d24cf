#include "store/file_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "accelerant/core/failpoint.h"
#include "core/files.h"

namespace accelerant::checkpoint {
namespace {

constexpr std::size_t kBufferSize = 1 << 20;
// Small enough that a piece is still in the cache when it is written after its checksum.
constexpr std::size_t kPieceSize = 1 << 20;

}  // namespace

FileWriter::FileWriter(const std::string& path, SumUp sum_up)
    : path_(path),
      sum_up_(sum_up),
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  if (!file_.is_open()) throw_system_error(path_ + " cannot be created", errno);
}

FileWriter::~FileWriter() = default;

void FileWriter::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (!buffer_) buffer_ = std::make_unique_for_overwrite<std::byte[]>(kBufferSize);
  if (buffered_ + bytes.size() > kBufferSize) flush();
  if (bytes.size() >= kBufferSize) {
    put(bytes);
    return;
  }
  std::memcpy(buffer_.get() + buffered_, bytes.data(), bytes.size());
  buffered_ += bytes.size();
}

void FileWriter::flush() { put({buffer_.get(), std::exchange(buffered_, 0)}); }

void FileWriter::put(std::span<const std::byte> bytes) {
  try {
    if (sum_up_ == SumUp::blocks) blocks_.begin(bytes);
    try {
      while (!bytes.empty()) bytes = bytes.subspan(put_piece(bytes));
    } catch (...) {
      blocks_.end();  // the bytes may go away now
      throw;
    }
    blocks_.end();
  } catch (...) {
    file_.reset();
    throw;
  }
}

std::size_t FileWriter::put_piece(std::span<const std::byte> bytes) {
  const auto piece = bytes.first(std::min(bytes.size(), kPieceSize));
  failpoint("checkpoint.write");
  const ssize_t done = ::write(file_.get(), piece.data(), piece.size());
  if (done < 0 && errno == EINTR) return 0;
  // A write of 0 bytes should never happen. Treat it as a full disk: retrying could loop forever.
  if (done <= 0) throw_system_error(path_ + " cannot be written", done < 0 ? errno : ENOSPC);
  const auto count = static_cast<std::size_t>(done);
  if (sum_up_ == SumUp::yes) checksum_.add(piece.first(count));
  size_ += count;
  return count;
}

FileChecksums FileWriter::finish_blocks() {
  const FileRecord record = finish();
  return {.size = record.size, .blocks = blocks_.finish()};
}

FileRecord FileWriter::finish() {
  flush();
  Fd file = std::move(file_);  // after a failed sync, a second one may report success
  failpoint("checkpoint.before_sync");
  if (!sync_fd(file.get())) throw_system_error(path_ + " cannot be synced", errno);
  if (!file.close()) throw_system_error(path_ + " cannot be closed", errno);
  failpoint("checkpoint.file_written");
  return {.size = size_, .xxh3 = sum_up_ == SumUp::yes ? checksum_.value() : 0};
}

}  // namespace accelerant::checkpoint
