#include "launch/console.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace accelerant::launch {
namespace {

constexpr size_t kCongestedFrom = size_t{1} << 20;

bool is_file(int fd) {
  struct stat information = {};
  return ::fstat(fd, &information) == 0 && S_ISREG(information.st_mode);
}

bool is_ready(int fd) {
  pollfd entry = {fd, POLLOUT, 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

ConsoleStream::ConsoleStream(int fd)
    : fd_(fd), is_terminal_(::isatty(fd) == 1), takes_all_(is_file(fd)) {}

void ConsoleStream::add(std::string_view bytes) {
  if (bytes.empty()) return;
  last_ = bytes.back();
  if (!is_closed_) pending_ += bytes;
}

void ConsoleStream::begin_line() {
  // The line before was a progress bar that expects to be overwritten; nothing of it may show.
  if (last_ == '\r' && is_terminal_) add("\x1b[K");
}

bool ConsoleStream::is_congested() const { return pending_.size() >= kCongestedFrom; }

void ConsoleStream::write_pending() {
  size_t written = 0;
  while (written < pending_.size()) {
    // A pipe that is ready takes so many bytes at once; the descriptor is shared with other
    // programs, so it cannot be made non-blocking.
    const size_t most = takes_all_ ? pending_.size() : PIPE_BUF;
    if (!takes_all_ && !is_ready(fd_)) break;
    const ssize_t size =
        ::write(fd_, pending_.data() + written, std::min(most, pending_.size() - written));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) break;
    if (size < 0) {
      is_closed_ = true;
      written = pending_.size();
      break;
    }
    written += static_cast<size_t>(size);
  }
  pending_.erase(0, written);
}

void Console::add_poll_entries(std::vector<pollfd>& entries) const {
  for (const ConsoleStream* stream : {&out, &err}) {
    if (stream->has_pending()) entries.push_back({stream->fd(), POLLOUT, 0});
  }
}

void Console::write_pending() {
  out.write_pending();
  err.write_pending();
}

void Console::flush(SignalWatch& signals) {
  std::vector<pollfd> entries;
  write_pending();
  while (out.has_pending() || err.has_pending()) {
    entries.assign({{signals.fd(), POLLIN, 0}});
    add_poll_entries(entries);
    ::poll(entries.data(), entries.size(), -1);
    if (const auto signal = signals.next(); signal && *signal != SIGUSR1) {
      out.drop_pending();
      err.drop_pending();
    }
    write_pending();
  }
}

}  // namespace accelerant::launch
