#include "meet/secret.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "accelerant/core/error.h"
#include "core/fd.h"
#include "core/files.h"

namespace accelerant::meet {
namespace {

constexpr std::size_t kRandomSize = 32;
constexpr std::size_t kShortestSecret = 32;
constexpr std::size_t kLongestSecret = 4096;

constexpr const char* kHowToMakeOne =
    "make one with: (umask 077; head -c 32 /dev/urandom > run.secret)";

[[noreturn]] void refuse_secret(const std::string& path, const std::string& expected,
                                const std::string& got, const std::string& hint) {
  throw Error(ErrorDetails{.problem = "The file of the run's secret cannot be used: " + path,
                           .expected = expected,
                           .got = got,
                           .hint = hint});
}

}  // namespace

// Memory of its own, so that it can be left out of core dumps.
class Secret::Page {
 public:
  Page() {
    void* const memory =
        ::mmap(nullptr, kLongestSecret, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw_system_error("There is no memory for the run's secret", errno);
    bytes_ = static_cast<std::byte*>(memory);
    ::madvise(memory, kLongestSecret, MADV_DONTDUMP);
    ::mlock(memory, kLongestSecret);  // not to the swap either; a limit may forbid it
  }
  ~Page() {
    ::explicit_bzero(bytes_, kLongestSecret);
    ::munmap(bytes_, kLongestSecret);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;

  std::span<std::byte> room() { return {bytes_, kLongestSecret}; }
  std::span<const std::byte> bytes() const { return {bytes_, size_}; }
  void set_size(std::size_t size) { size_ = size; }

 private:
  std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
};

Secret Secret::random() {
  const auto page = std::make_shared<Page>();
  // Up to 256 bytes come at once and without interruption.
  if (::getrandom(page->room().data(), kRandomSize, 0) != static_cast<ssize_t>(kRandomSize)) {
    throw_system_error("There are no random numbers for the run's secret", errno);
  }
  page->set_size(kRandomSize);
  return Secret(page);
}

Secret Secret::read(const std::string& path) {
  // Non-blocking: it may be a pipe.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.is_open()) {
    refuse_secret(path, "a file that this user can read", ::strerror(errno),
                  errno == ENOENT ? "check the path: --secret-file or ACCELERANT_SECRET_FILE; the "
                                    "launcher removes its own file when it ends"
                                  : "check the owner and the mode of the file");
  }
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) throw_system_error("Cannot look at " + path, errno);
  if (!S_ISREG(status.st_mode)) {
    refuse_secret(path, "a regular file", "something else", kHowToMakeOne);
  }
  if (status.st_uid != ::geteuid()) {
    refuse_secret(path, "a file of user " + std::to_string(::geteuid()),
                  "one of user " + std::to_string(status.st_uid), kHowToMakeOne);
  }
  if ((status.st_mode & 077) != 0) {
    refuse_secret(path, "a file that nobody else can use", "one that others may read or change",
                  "forbid it: chmod 600 " + path + "; if others could read it, make a new one");
  }
  const auto page = std::make_shared<Page>();
  std::size_t size = 0;
  while (size < kLongestSecret) {
    const ssize_t count = ::read(file.get(), page->room().data() + size, kLongestSecret - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_system_error("Cannot read " + path, errno);
    if (count == 0) break;
    size += static_cast<std::size_t>(count);
  }
  std::byte more{};
  if (size < kShortestSecret || ::read(file.get(), &more, 1) > 0) {
    refuse_secret(path, "32 to 4096 random bytes",
                  size < kShortestSecret ? std::to_string(size) + " bytes" : "more", kHowToMakeOne);
  }
  page->set_size(size);
  return Secret(page);
}

void Secret::write(const std::string& path) const {
  const Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open()) throw_system_error("The run's secret cannot be written to " + path, errno);
  write_all(file.get(), bytes(), path);
}

std::span<const std::byte> Secret::bytes() const { return page_->bytes(); }

}  // namespace accelerant::meet
