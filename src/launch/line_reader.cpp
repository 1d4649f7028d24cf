#include "launch/line_reader.h"

#include <cctype>

namespace accelerant::launch {
namespace {

constexpr size_t kLongestLine = size_t{16} << 20;  // longer ones are told in pieces
constexpr std::string_view kEraseRest = "\x1b[K";

// Without the beginning of an escape sequence at its end, the rest of which is still to come.
std::string_view without_cut_sequence(std::string_view text) {
  const size_t start = text.rfind('\x1b');
  if (start == std::string_view::npos) return text;
  for (const char c : text.substr(start)) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) return text;
  }
  return text.substr(0, start);
}

}  // namespace

void LineReader::receive(std::string_view bytes) {
  while (!bytes.empty()) {
    if (line_.ends_with('\r') && bytes.front() != '\n') take_return();
    // 'K' ends the sequence that erases.
    const size_t end = bytes.find_first_of(is_live_ ? "\r\nK" : "\r\n");
    const bool has_end = end != std::string_view::npos;
    const std::string_view part = bytes.substr(0, has_end ? end + 1 : end);
    line_ += part;
    bytes.remove_prefix(part.size());
    if (line_.size() > kLongestLine && !has_end) line_ += '\n';
    if (line_.ends_with('\n')) {
      take_newline();
    } else if (is_live_ && after_return_ && line_.ends_with(kEraseRest)) {
      take_erase();
    }
  }
  if (is_live_) tell_unfinished_state();
}

void LineReader::finish() {
  if (line_.ends_with('\r')) line_.pop_back();
  if (!line_.empty()) {
    line_ += '\n';
    take_newline();
  }
  if (is_live_ && bar_is_open_) handler_.end_bar();
  bar_is_open_ = false;
}

void LineReader::take_newline() {
  line_.pop_back();
  if (is_live_ && bar_is_open_ && (line_.empty() || line_ == "\r")) {
    handler_.end_bar();
    bar_is_open_ = false;
  } else {
    const bool was_bar = after_return_ || was_told_;
    if (was_bar) bar_is_open_ = false;
    handler_.take_line(line_, was_bar);
  }
  clear_line();
}

void LineReader::take_return() {
  line_.pop_back();
  // Bars often begin with the "\r"; alone it shows nothing.
  if (!line_.empty()) {
    handler_.take_bar(line_);
    bar_is_open_ = true;
  }
  clear_line();
  after_return_ = true;
}

void LineReader::take_erase() {
  line_.resize(line_.size() - kEraseRest.size());
  bar_is_open_ = !line_.empty();
  if (bar_is_open_) {
    handler_.take_bar(line_);
  } else {
    handler_.remove_bar();
  }
  clear_line();
}

void LineReader::tell_unfinished_state() {
  std::string_view text = line_;
  if (text.ends_with('\r')) {
    text.remove_suffix(1);
  } else if (!after_return_) {
    return;
  }
  text = without_cut_sequence(text);
  if (text.empty()) return;
  handler_.take_bar(text);
  bar_is_open_ = was_told_ = true;
}

void LineReader::clear_line() {
  line_.clear();
  after_return_ = was_told_ = false;
}

}  // namespace accelerant::launch
