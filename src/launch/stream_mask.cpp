#include "launch/stream_mask.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "accelerant/core/error.h"

namespace accelerant::launch {
namespace {

constexpr int kAll = 3;

std::optional<int64_t> number_of(std::string_view text) {
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || stop != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace

StreamMask::StreamMask(const std::string& text, const std::string& option,
                       int64_t local_world_size) {
  const auto refuse = [&] {
    throw Error(ErrorDetails{.problem = option,
                             .expected = "0 (none), 1 (standard output), 2 (standard error) or 3 "
                                         "(both); or one of these by local rank, as in 0:3,1:1, "
                                         "with ranks from 0 to " +
                                         std::to_string(local_world_size - 1),
                             .got = "'" + text + "'"});
  };
  if (text.empty()) return;
  if (const auto mask = number_of(text)) {
    if (*mask > kAll) refuse();
    for_all_ = static_cast<int>(*mask);
    return;
  }
  std::string_view rest = text;
  while (true) {
    const size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    const size_t colon = entry.find(':');
    if (colon == std::string_view::npos) refuse();
    const auto rank = number_of(entry.substr(0, colon));
    const auto mask = number_of(entry.substr(colon + 1));
    if (!rank || !mask || *mask > kAll || *rank >= local_world_size) refuse();
    by_rank_[*rank] = static_cast<int>(*mask);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
}

StreamMask StreamMask::all() {
  StreamMask mask;
  mask.for_all_ = kAll;
  return mask;
}

bool StreamMask::has(int64_t local_rank, Stream stream) const {
  const auto found = by_rank_.find(local_rank);
  const int mask = found == by_rank_.end() ? for_all_ : found->second;
  return (mask & (stream == Stream::out ? 1 : 2)) != 0;
}

}  // namespace accelerant::launch
