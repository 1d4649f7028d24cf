#include "launch/rank_log.h"

#include <cerrno>
#include <cstring>

namespace accelerant::launch {
namespace {

// As ProgressBar has it for plain lines.
constexpr std::chrono::seconds kBarInterval(5);

}  // namespace

void RankLog::write(std::string_view bytes) {
  while (file_.is_open() && !bytes.empty()) {
    const ssize_t size = ::write(file_.get(), bytes.data(), bytes.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) {  // the disk is full, say; that must not end the training
      if (is_complete_) {
        problem_ = "cannot write the log file " + path_ + ": " + std::strerror(errno) +
                   "; the run continues";
      }
      is_complete_ = false;
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(size));
  }
}

void RankLog::write_line(std::string_view text) {
  if (text.ends_with('\r')) text.remove_suffix(1);
  std::string line(text);
  write(line += '\n');
}

void RankLog::write_bar(std::string_view state) {
  if (!file_.is_open()) return;
  bar_ = state;
  const Clock::time_point now = Clock::now();
  if (!std::exchange(bar_has_begun_, true)) bar_written_at_ = now;
  if (now - bar_written_at_ < kBarInterval) return;
  bar_written_at_ = now;
  write_line(std::exchange(bar_, {}));
}

void RankLog::end_bar() {
  if (!bar_.empty()) write_line(std::exchange(bar_, {}));
  bar_has_begun_ = false;
}

}  // namespace accelerant::launch
