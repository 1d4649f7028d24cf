#include "launch/rank_stream.h"

#include <utility>

#include "core/stack_frames.h"

namespace accelerant::launch {
namespace {

constexpr size_t kTailLines = 10;
constexpr size_t kTailLineBytes = 2000;

}  // namespace

RankStream::RankStream(RankStreamOptions options, RankLog log)
    : options_(std::move(options)),
      log_(std::move(log)),
      reader_(*this, options_.console != nullptr && options_.console->is_terminal()) {}

void RankStream::receive(std::string_view bytes) {
  if (!options_.draws_bar) log_.write(bytes);
  if (options_.console != nullptr && options_.prefix.empty()) options_.console->add(bytes);
  reader_.receive(bytes);
}

void RankStream::finish() {
  reader_.finish();
  if (!bar_.empty()) remember(std::exchange(bar_, {}));
}

void RankStream::take_line(std::string_view text, bool was_bar) {
  if (was_bar) bar_.clear();
  remember(text);
  if (options_.draws_bar) {
    if (was_bar) log_.remove_bar();
    log_.write_line(text);
  }
  if (!shows_lines()) return;
  ConsoleStream& console = *options_.console;
  if (was_bar) console.remove_bar(options_.rank);
  console.add_lines((was_bar ? with_prefix_of_bar(text) : with_prefix(text)) + "\n");
}

void RankStream::take_bar(std::string_view text) {
  bar_ = text;
  if (options_.draws_bar) log_.write_bar(text);
  if (!shows_lines()) return;
  if (options_.console->is_terminal()) {
    options_.console->set_bar(options_.rank, with_prefix_of_bar(text));
  } else {
    options_.console->add(with_prefix(text) + "\r");
  }
}

void RankStream::end_bar() {
  const std::string state = std::exchange(bar_, {});
  remember(state);
  if (options_.draws_bar) log_.end_bar();
  if (!shows_lines() || options_.console->end_bar(options_.rank)) return;
  options_.console->add_lines(with_prefix(state) + "\n");
}

void RankStream::remove_bar() {
  bar_.clear();
  if (options_.draws_bar) log_.remove_bar();
  if (shows_lines()) options_.console->remove_bar(options_.rank);
}

// The library's own messages have the prefix already.
std::string RankStream::with_prefix(std::string_view text) const {
  std::string line = text.starts_with(options_.prefix) ? "" : options_.prefix;
  return line.append(text);
}

std::string RankStream::with_prefix_of_bar(std::string_view text) const {
  return options_.draws_bar ? std::string(text) : with_prefix(text);
}

void RankStream::remember(std::string_view line) {
  // Ten frames would push out everything that says why.
  if (is_stack_frame(line)) return;
  if (line.ends_with('\r')) line.remove_suffix(1);
  tail_.emplace_back(line.substr(0, kTailLineBytes));
  if (tail_.size() > kTailLines) tail_.pop_front();
}

std::string RankStream::last_lines() const {
  std::string text;
  for (const std::string& line : tail_) text += line + "\n";
  return text;
}

}  // namespace accelerant::launch
