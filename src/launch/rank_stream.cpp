#include "launch/rank_stream.h"

#include <cerrno>
#include <cstring>

namespace accelerant::launch {
namespace {

constexpr size_t kTailLines = 10;
constexpr size_t kTailLineBytes = 2000;
constexpr size_t kLongestLine = size_t{16} << 20;  // longer ones are shown in pieces

}  // namespace

RankStream::RankStream(ConsoleStream* console, std::string prefix, Fd log_file,
                       std::string log_path)
    : console_(console),
      prefix_(std::move(prefix)),
      log_file_(std::move(log_file)),
      log_path_(std::move(log_path)) {}

void RankStream::receive(std::string_view bytes) {
  write_log(bytes);
  for (std::string_view rest = bytes; !rest.empty();) {
    const size_t end = rest.find('\n');
    std::string_view piece = rest.substr(0, end);
    // Of a progress bar that is drawn over and over again the last drawing counts.
    if (const size_t start = piece.find_last_of('\r', piece.size() < 2 ? 0 : piece.size() - 2);
        start != std::string_view::npos && start + 1 < piece.size()) {
      tail_line_.clear();
      piece.remove_prefix(start + 1);
    }
    tail_line_ += piece.substr(0, kTailLineBytes - tail_line_.size());
    if (end == std::string_view::npos) break;
    remember_line();
    rest.remove_prefix(end + 1);
  }
  if (console_ == nullptr) return;
  if (prefix_.empty()) {
    console_->add(bytes);
  } else {
    split_lines(bytes);
  }
}

void RankStream::finish() {
  if (!tail_line_.empty()) remember_line();
  if (line_.empty()) return;
  if (line_ != "\r") {
    if (line_.ends_with('\r')) line_.pop_back();
    line_ += '\n';
    show_line();
  }
  line_.clear();
}

// A line ends with "\n", or with the "\r" of a progress bar, of which "\r\n" is none. Whether it is
// one shows with the byte after it.
void RankStream::split_lines(std::string_view bytes) {
  while (!bytes.empty()) {
    if (line_.ends_with('\r') && bytes.front() != '\n') show_line();
    const size_t end = bytes.find_first_of("\r\n");
    const bool has_end = end != std::string_view::npos;
    const std::string_view part = bytes.substr(0, has_end ? end + 1 : end);
    line_ += part;
    bytes.remove_prefix(part.size());
    if (line_.size() > kLongestLine && !has_end) line_ += '\n';
    if (line_.ends_with('\n')) show_line();
  }
}

void RankStream::show_line() {
  // Bars often begin with the carriage return; alone it shows nothing.
  if (line_ != "\r") {
    console_->begin_line();
    if (!line_.starts_with(prefix_)) console_->add(prefix_);  // messages of the library have it
    console_->add(line_);
  }
  line_.clear();
}

void RankStream::remember_line() {
  tail_.push_back(std::exchange(tail_line_, {}));
  if (tail_.size() > kTailLines) tail_.pop_front();
}

std::string RankStream::last_lines() const {
  std::string text;
  for (const std::string& line : tail_) text += line + "\n";
  return text;
}

void RankStream::write_log(std::string_view bytes) {
  while (log_file_.is_open() && !bytes.empty()) {
    const ssize_t size = ::write(log_file_.get(), bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {  // the disk is full, say; that must not end the training
      if (log_complete_) {
        log_problem_ = "cannot write the log file " + log_path_ + ": " + std::strerror(errno) +
                       "; the run goes on";
      }
      log_complete_ = false;
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(size));
  }
}

}  // namespace accelerant::launch
