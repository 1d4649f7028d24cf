#include "data/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>

#include "accelerant/core/error.h"

namespace accelerant::data {
namespace {

constexpr std::size_t buffer_size = std::size_t{1} << 18;
constexpr uint64_t largest_deflate_ratio = 1032;  // 258 bytes for two bits, RFC 1951

}  // namespace

// zlib's own gzread() ignores what follows the data, so its lower layer is used.
struct ByteSource::Unpacker {
  Unpacker() {
    constexpr int gzip_only = 16 + MAX_WBITS;
    if (inflateInit2(&stream, gzip_only) != Z_OK) throw std::bad_alloc();
  }
  ~Unpacker() { inflateEnd(&stream); }
  Unpacker(const Unpacker&) = delete;
  Unpacker& operator=(const Unpacker&) = delete;

  z_stream stream{};
  bool finished = false;
};

ByteSource::ByteSource(const std::string& path)
    : path_(path), buffer_(std::make_unique<char[]>(buffer_size)) {
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail(std::string("cannot be opened: ") + std::strerror(errno));
  try {
    struct stat status {};
    if (fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode)) {
      file_size_ = static_cast<uint64_t>(status.st_size);
    }
    // A pipe may give one byte at a time.
    while (buffer_end_ < 2 && !at_end_of_file_) fill_buffer();
    const bool is_gzip = buffer_end_ >= 2 && buffer_[0] == '\x1F' && buffer_[1] == '\x8B';
    if (is_gzip) unpacker_ = std::make_unique<Unpacker>();
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

ByteSource::~ByteSource() { close(descriptor_); }

std::size_t ByteSource::read(void* target, std::size_t size) {
  char* const bytes = static_cast<char*>(target);
  return is_plain() ? read_plain(bytes, size) : read_unpacked(bytes, size);
}

std::optional<uint64_t> ByteSource::largest_content() const {
  if (!file_size_ || is_plain()) return file_size_;
  if (*file_size_ > std::numeric_limits<uint64_t>::max() / largest_deflate_ratio) return {};
  return *file_size_ * largest_deflate_ratio;
}

void ByteSource::fail(const std::string& what) const { throw Error(path_ + ": " + what); }

// Adds what one call gives to the buffer, which has room.
void ByteSource::fill_buffer() {
  if (buffer_begin_ == buffer_end_) buffer_begin_ = buffer_end_ = 0;
  ssize_t got = 0;
  do {
    got = ::read(descriptor_, buffer_.get() + buffer_end_, buffer_size - buffer_end_);
  } while (got < 0 && errno == EINTR);
  if (got < 0) fail(std::string("cannot be read: ") + std::strerror(errno));
  at_end_of_file_ = got == 0;
  buffer_end_ += static_cast<std::size_t>(got);
}

std::size_t ByteSource::read_plain(char* target, std::size_t size) {
  std::size_t done = 0;
  while (done < size) {
    if (buffer_begin_ == buffer_end_) {
      if (!at_end_of_file_) fill_buffer();
      if (at_end_of_file_) break;
    }
    const std::size_t part = std::min(size - done, buffer_end_ - buffer_begin_);
    std::memcpy(target + done, buffer_.get() + buffer_begin_, part);
    buffer_begin_ += part;
    done += part;
  }
  return done;
}

std::size_t ByteSource::read_unpacked(char* target, std::size_t size) {
  z_stream& stream = unpacker_->stream;
  std::size_t done = 0;
  while (done < size && !unpacker_->finished) {
    if (buffer_begin_ == buffer_end_) {
      if (!at_end_of_file_) fill_buffer();
      if (at_end_of_file_) fail("is truncated: its gzip data end early");
    }
    const std::size_t packed = buffer_end_ - buffer_begin_;
    const std::size_t room =
        std::min<std::size_t>(size - done, 1U << 30);  // zlib counts in 32 bits
    stream.next_in = reinterpret_cast<Bytef*>(buffer_.get() + buffer_begin_);
    stream.avail_in = static_cast<uInt>(packed);
    stream.next_out = reinterpret_cast<Bytef*>(target + done);
    stream.avail_out = static_cast<uInt>(room);
    const int code = inflate(&stream, Z_NO_FLUSH);
    buffer_begin_ += packed - stream.avail_in;
    done += room - stream.avail_out;
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    if (code == Z_STREAM_END) {
      unpacker_->finished = !begin_next_member();
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      const std::string reason = stream.msg != nullptr ? stream.msg : "unknown";
      fail("cannot be read: its gzip data are damaged (" + reason + ")");
    }
  }
  return done;
}

// A gzip file is one or more members, one after the other. False at the end of the file.
bool ByteSource::begin_next_member() {
  while (buffer_end_ - buffer_begin_ < 2 && !at_end_of_file_) {
    // The byte that may be left goes to the front: there is always room for the next.
    std::memmove(buffer_.get(), buffer_.get() + buffer_begin_, buffer_end_ - buffer_begin_);
    buffer_end_ -= buffer_begin_;
    buffer_begin_ = 0;
    fill_buffer();
  }
  const char* const next = buffer_.get() + buffer_begin_;
  const std::size_t left = buffer_end_ - buffer_begin_;
  if (left == 0) return false;
  if (left < 2 || next[0] != '\x1F' || next[1] != '\x8B')
    fail("has more bytes after its gzip data");
  inflateReset(&unpacker_->stream);
  return true;
}

std::string read_whole_file(const std::string& path) {
  ByteSource source(path);
  std::string content;
  // One byte more than a plain file has: a full read would have to be followed by another.
  std::size_t step = source.is_plain() ? source.largest_content().value_or(0) + 1 : 0;
  for (;;) {
    step = std::max({step, content.size(), std::size_t{1} << 16});
    const std::size_t before = content.size();
    content.resize(before + step);
    const std::size_t got = source.read(content.data() + before, step);
    content.resize(before + got);
    if (got < step) return content;
    step = 0;
  }
}

}  // namespace accelerant::data
