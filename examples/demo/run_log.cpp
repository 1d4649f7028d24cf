#include "run_log.h"

#include <algorithm>
#include <bit>
#include <sstream>

#include "recorder.h"

namespace demo {

bool RunLog::take(const std::string& line) {
  const std::size_t begin = line.find(line_begin);
  if (begin == std::string::npos) return false;
  if (!line.ends_with(line_end)) return true;  // its process was killed while it wrote
  const std::string prefix = "[rank ";
  const std::size_t index = line.starts_with(prefix) ? std::stoul(line.substr(prefix.size())) : 0;
  Rank& rank = ranks_.at(index);

  const std::size_t content = begin + line_begin.size();
  std::istringstream words(line.substr(content, line.size() - line_end.size() - content));
  std::string kind;
  words >> kind;
  if (kind == "start") {
    words >> rank.started_after >> rank.pid;
    rank.updates = rank.started_after;
    ++rank.starts;
    if (start_ == Clock::time_point()) start_ = Clock::now();
  } else if (kind == "losses") {
    int64_t first = 0;
    std::string bits;
    words >> first;
    std::getline(words, bits);
    take_losses(rank, first, bits);
  } else if (kind == "stop") {
    stop_ = Clock::now();
  } else if (kind == "accuracy") {
    words >> accuracy_;
  }
  return true;
}

void RunLog::take_losses(Rank& rank, int64_t first, const std::string& bits) {
  std::istringstream words(bits);
  words >> std::hex;
  rank.updates = first;
  for (uint32_t loss = 0; words >> loss; ++rank.updates) {
    const auto [known, is_new] = rank.losses.emplace(rank.updates, loss);
    if (is_new) continue;
    ++rank.computed_twice;
    if (known->second != loss) rank.repeats_itself = false;
  }
}

double RunLog::latest_loss() const {
  const auto& losses = ranks_.front().losses;
  return losses.empty() ? 0 : std::bit_cast<float>(losses.rbegin()->second);
}

double RunLog::seconds() const { return std::chrono::duration<double>(stop_ - start_).count(); }

bool RunLog::is_complete(int64_t updates) const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
    return static_cast<int64_t>(rank.losses.size()) == updates;
  });
}

bool RunLog::has_the_losses_of(const RunLog& other) const {
  if (ranks_.size() != other.ranks_.size()) return false;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].losses != other.ranks_[i].losses || !ranks_[i].repeats_itself) return false;
  }
  return true;
}

}  // namespace demo
