#include "launch/console.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "core/launch_contract.h"

namespace accelerant::launch {
namespace {

constexpr size_t kCongestedFrom = size_t{1} << 20;

bool is_file(int fd) {
  struct stat information = {};
  return ::fstat(fd, &information) == 0 && S_ISREG(information.st_mode);
}

bool understands_escapes() {
  const char* const kind = std::getenv("TERM");
  return std::string_view(kind == nullptr ? "" : kind) != "dumb";
}

// The first columns of a text. A code point is one column; escape sequences (colours) take none.
std::string cut_to_columns(const std::string& text, size_t columns) {
  size_t seen = 0;
  bool in_sequence = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0x1b) {
      in_sequence = true;
    } else if (in_sequence) {
      in_sequence = std::isalpha(byte) == 0;
    } else if ((byte & 0xC0U) != 0x80U && seen++ == columns) {
      return text.substr(0, i);
    }
  }
  return text;
}

bool is_ready(int fd) {
  pollfd entry = {fd, POLLOUT, 0};
  return ::poll(&entry, 1, 0) == 1;
}

}  // namespace

ConsoleStream::ConsoleStream(int fd)
    : fd_(fd), is_terminal_(::isatty(fd) == 1 && understands_escapes()), takes_all_(is_file(fd)) {}

void ConsoleStream::add(std::string_view bytes) {
  if (bytes.empty()) return;
  last_ = bytes.back();
  if (!is_closed_) pending_ += bytes;
}

void ConsoleStream::add_lines(std::string_view lines) {
  hide_bar();
  add(lines);
}

void ConsoleStream::set_bar(int64_t rank, std::string text) {
  if (bar_ && bar_->rank < rank) return;
  bar_ = {.rank = rank, .text = std::move(text)};
  bar_has_changed_ = true;
}

bool ConsoleStream::end_bar(int64_t rank) {
  if (!has_bar_of(rank)) return false;
  draw_bar();
  bar_is_visible_ = false;
  bar_.reset();
  add("\n");
  return true;
}

void ConsoleStream::remove_bar(int64_t rank) {
  if (!has_bar_of(rank)) return;
  hide_bar();
  bar_.reset();
}

void ConsoleStream::hide_bar() {
  if (!std::exchange(bar_is_visible_, false)) return;
  add("\r\x1b[K");
  last_ = '\n';  // the line is empty again
}

void ConsoleStream::draw_bar() {
  if (!bar_ || (bar_is_visible_ && !bar_has_changed_)) return;
  // The window may have been resized since the rank drew it. The last column stays free: some
  // terminals wrap as soon as it is written.
  const size_t columns = terminal_columns(fd_).value_or(80);
  add("\r" + cut_to_columns(bar_->text, columns - 1) + "\x1b[K");
  bar_is_visible_ = true;
  bar_has_changed_ = false;
}

bool ConsoleStream::is_congested() const { return pending_.size() >= kCongestedFrom; }

void ConsoleStream::write_pending() {
  draw_bar();  // once for all lines that came since the last time
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

bool Console::is_same_terminal(int one, int other) {
  struct stat first = {};
  struct stat second = {};
  return ::isatty(one) == 1 && ::isatty(other) == 1 && ::fstat(one, &first) == 0 &&
         ::fstat(other, &second) == 0 && first.st_rdev == second.st_rdev;
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
