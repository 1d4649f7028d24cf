#include "checkpoint/file_writer.h"

#include <fcntl.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "accelerant/core/failpoint.h"
#include "core/files.h"

namespace accelerant::checkpoint {
namespace {

constexpr std::size_t kBufferSize = 1 << 20;
// Small enough for a piece to be in the cache still when it is written after it was summed up.
constexpr std::size_t kPieceSize = 1 << 20;

}  // namespace

struct Checksum {
  Checksum() : state(XXH3_createState()) {
    if (state == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(state);
  }
  ~Checksum() { XXH3_freeState(state); }
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;

  XXH3_state_t* state;
};

FileWriter::FileWriter(const std::string& path)
    : path_(path),
      file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)),
      checksum_(std::make_unique<Checksum>()) {
  if (!file_.is_open()) throw_system_error(path_ + " cannot be made", errno);
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
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPieceSize));
    failpoint("checkpoint.write");
    write_all(file_.get(), piece, path_);
    XXH3_64bits_update(checksum_->state, piece.data(), piece.size());
    size_ += piece.size();
    bytes = bytes.subspan(piece.size());
  }
}

FileRecord FileWriter::finish() {
  flush();
  failpoint("checkpoint.before_sync");
  if (::fsync(file_.get()) != 0) throw_system_error(path_ + " cannot be synced", errno);
  if (!file_.close()) throw_system_error(path_ + " cannot be closed", errno);
  failpoint("checkpoint.file_written");
  return {.size = size_, .xxh3 = XXH3_64bits_digest(checksum_->state)};
}

FileRecord record_of(const std::string& path) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) throw_system_error(path + " cannot be read", errno);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(kPieceSize);
  const Checksum checksum;
  FileRecord record;
  while (true) {
    const ssize_t got = ::read(file.get(), buffer.get(), kPieceSize);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_system_error(path + " cannot be read", errno);
    if (got == 0) break;
    XXH3_64bits_update(checksum.state, buffer.get(), static_cast<std::size_t>(got));
    record.size += static_cast<std::uint64_t>(got);
  }
  record.xxh3 = XXH3_64bits_digest(checksum.state);
  return record;
}

}  // namespace accelerant::checkpoint
