#include "watch/watch.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/texts.h"

namespace accelerant::dist {
namespace {

std::string seconds_text(double time) {
  return time < 10 ? std::to_string(static_cast<int64_t>(time * 10) / 10) + "." +
                         std::to_string(static_cast<int64_t>(time * 10) % 10) + " s"
                   : std::to_string(static_cast<int64_t>(time)) + " s";
}

std::string milliseconds_text(double time) {
  char text[32];
  std::snprintf(text, sizeof(text), time < 0.01 ? "%.1f ms" : "%.0f ms", time * 1000);
  return text;
}

std::string operation_text(const ProgressSnapshot& progress) {
  std::string text = progress.operation;
  if (progress.collective) text += " (exchange " + std::to_string(progress.number) + ")";
  return text;
}

constexpr const char* kAdvice =
    ". All processes must make the same exchanges in the same order: look for a call inside an if "
    "that only some processes enter, or for loops of different length";

bool is_one(const std::vector<int64_t>& ranks) { return ranks.size() == 1; }

// "rank 1 is at step 2", "ranks 1 and 2 are at step 2".
std::string ranks_do(const std::vector<int64_t>& ranks, std::string what) {
  if (!is_one(ranks)) {
    if (what.starts_with("is ")) what.replace(0, 2, "are");
    if (what.starts_with("has ")) what.replace(0, 3, "have");
  }
  return ranks_text(ranks) + " " + what;
}

// Groups ranks that share the same text, in the order of the first rank of each group.
class RanksByText {
 public:
  void add(const std::string& what, int64_t rank) {
    for (auto& [text, ranks] : groups_)
      if (text == what) return ranks.push_back(rank);
    groups_.push_back({what, {rank}});
  }

  template <class Say>
  std::string text(Say&& say) const {
    std::string all;
    for (const auto& [what, ranks] : groups_) all += (all.empty() ? "" : "; ") + say(what, ranks);
    return all;
  }

 private:
  std::vector<std::pair<std::string, std::vector<int64_t>>> groups_;
};

// The name of the collective with this number; nothing if the process has not begun it, or did long
// ago.
const std::string* collective_of(const ProgressSnapshot& progress, int64_t number) {
  const int64_t back = progress.number - number;
  const auto known = static_cast<int64_t>(progress.recent.size());
  if (back < 0 || back >= known) return nullptr;
  return &progress.recent[static_cast<size_t>(known - 1 - back)];
}

// Whether the process can no longer take part in this collective. One that failed may have begun it,
// but after a failure its connections are useless.
bool ended_before(const Heartbeat& heartbeat, int64_t number) {
  if (heartbeat.state == ProcessState::running) return false;
  const bool began = heartbeat.progress.number >= number;
  return !began || (heartbeat.state != ProcessState::left && heartbeat.progress.number == number);
}

}  // namespace

Watch::Watch(int64_t rank, int64_t size, const MonitorOptions& options)
    : rank_(rank),
      size_(size),
      options_(options),
      stuck_after_(seconds(options.stuck_after)),
      silent_after_(3 * seconds(options.interval)),
      seen_(static_cast<size_t>(size)) {}

void Watch::observe(double now, const std::vector<std::optional<Heartbeat>>& heartbeats) {
  for (size_t i = 0; i < seen_.size() && i < heartbeats.size(); ++i) {
    Seen& seen = seen_[i];
    if (!looking_) seen.at = now;
    if (!heartbeats[i]) continue;
    const bool own = static_cast<int64_t>(i) == rank_;
    if (own || !seen.heartbeat || seen.heartbeat->beat != heartbeats[i]->beat) {
      seen.heartbeat = heartbeats[i];
      seen.at = now;
    }
  }
  looking_ = true;
}

const std::optional<Heartbeat>& Watch::heartbeat(int64_t rank) const {
  return seen(rank).heartbeat;
}

bool Watch::is_running(int64_t rank) const {
  const auto& heartbeat = seen(rank).heartbeat;
  return !heartbeat || heartbeat->state == ProcessState::running;
}

bool Watch::is_silent(int64_t rank, double now, double after) const {
  return rank != rank_ && looking_ && is_running(rank) && now - seen(rank).at >= after;
}

std::vector<int64_t> Watch::silent(double now) const {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < size_; ++rank)
    if (is_silent(rank, now, silent_after_)) ranks.push_back(rank);
  return ranks;
}

std::vector<int64_t> Watch::behind() const {
  std::vector<int64_t> ranks;
  const auto& own = seen(rank_).heartbeat;
  for (int64_t rank = 0; rank < size_ && own; ++rank) {
    const auto& other = seen(rank).heartbeat;
    if (is_running(rank) && (!other || other->progress.number < own->progress.number))
      ranks.push_back(rank);
  }
  return ranks;
}

// How long the process has been where it was last seen.
double Watch::since(int64_t rank, double now) const {
  const auto& heartbeat = seen(rank).heartbeat;
  return now - seen(rank).at + (heartbeat ? heartbeat->progress.since : 0);
}

std::string Watch::place(int64_t rank) const {
  const auto& heartbeat = seen(rank).heartbeat;
  if (!heartbeat) return "has not reported anything yet";
  const ProgressSnapshot& progress = heartbeat->progress;
  if (heartbeat->state == ProcessState::left)
    return "has left the run after " + std::to_string(progress.number) +
           (progress.number == 1 ? " exchange" : " exchanges");
  if (heartbeat->state == ProcessState::failed) return "has failed: " + heartbeat->message;
  const std::string step = "step " + std::to_string(progress.step);
  if (heartbeat->state == ProcessState::lost) {
    return "has given up at " + step +
           (progress.operation.empty() ? "" : ", in " + operation_text(progress));
  }
  if (progress.operation.empty()) return "is at " + step + ", in user code";
  return "is at " + step + ", in " + operation_text(progress);
}

// Processes in the same place are named together, however long each has been there.
std::string Watch::places(double now, const std::vector<int64_t>& ranks) const {
  RanksByText groups;
  for (const int64_t rank : ranks) {
    std::string text = place(rank);
    if (is_silent(rank, now, silent_after_)) {
      const bool is_known = text.starts_with("is at ");
      text = "has not answered for " + seconds_text(now - seen(rank).at) +
             (is_known ? " (last heard at " + text.substr(6) + ")" : "");
    }
    groups.add(text, rank);
  }
  return groups.text([](const std::string& what, const auto& who) { return ranks_do(who, what); });
}

std::vector<int64_t> Watch::others() const {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < size_; ++rank)
    if (rank != rank_) ranks.push_back(rank);
  return ranks;
}

std::string Watch::who_is_late(double now) const {
  if (const auto mute = silent(now); !mute.empty()) return places(now, mute);
  const auto late = behind();
  if (late.empty()) return "nobody is behind: " + places(now, others());
  RanksByText groups;
  for (const int64_t rank : late) {
    std::string text = place(rank);
    if (text.starts_with("is at ")) text.insert(2, " behind,");
    groups.add(text, rank);
  }
  return groups.text([](const std::string& what, const auto& who) { return ranks_do(who, what); });
}

// What the process did instead of the exchange that this one waits in; empty if it did the same or
// has not come so far.
std::string Watch::made_instead(int64_t rank, int64_t number, const std::string& operation) const {
  const auto& other = seen(rank).heartbeat;
  if (!other || !other->progress.ordered) return "";
  const ProgressSnapshot& progress = other->progress;
  const std::string* theirs = collective_of(progress, number);
  if (theirs == nullptr || *theirs == operation) return "";
  const std::string step = std::to_string(progress.step);
  if (progress.number == number && progress.collective) return *theirs + " (step " + step + ")";
  if (other->state == ProcessState::failed) return *theirs + ", since then failed";
  // For one or several ranks.
  std::string where = place(rank);
  if (where.starts_with("is ")) where.replace(0, 2, "now");
  if (where.starts_with("has ")) where.replace(0, 3, "since then");
  return *theirs + ", " + where;
}

std::optional<std::string> Watch::mismatch(double now) const {
  const auto& own = seen(rank_).heartbeat;
  if (!own || !own->progress.collective || !own->progress.ordered) return std::nullopt;
  if (since(rank_, now) < seconds(options_.mismatch_after)) return std::nullopt;
  const int64_t number = own->progress.number;
  RanksByText different;
  RanksByText ended;
  std::vector<int64_t> rest;
  for (const int64_t rank : others()) {
    const auto& other = seen(rank).heartbeat;
    const std::string instead = made_instead(rank, number, own->progress.operation);
    if (!instead.empty())
      different.add(instead, rank);
    else if (other && other->progress.ordered && ended_before(*other, number))
      // Its message ends with the same advice.
      ended.add(place(rank).substr(0, place(rank).find(kAdvice)), rank);
    else
      rest.push_back(rank);
  }
  std::string why = different.text([&](const std::string& what, const auto& ranks) {
    return "exchange " + std::to_string(number) + " of " + ranks_text(ranks) + " is " + what;
  });
  // If exchanges differ, the end of other processes is a consequence.
  if (why.empty())
    why = ended.text([](const std::string& what, const auto& who) { return ranks_do(who, what); });
  if (why.empty()) return std::nullopt;
  return "is blocked in " + operation_text(own->progress) + ", which can never complete: " + why +
         (rest.empty() ? "" : "; " + places(now, rest)) + kAdvice;
}

std::optional<double> Watch::lost_after() const {
  if (options_.lost_after.count() <= 0) return std::nullopt;
  return std::max(seconds(options_.lost_after), silent_after_);
}

void Watch::begin_again(double now) {
  for (Seen& seen : seen_) seen.at = now;
  said_silent_.clear();
}

std::optional<std::string> Watch::lost(
    double now, const std::function<bool(const Heartbeat&)>& is_excused) const {
  const auto& own = seen(rank_).heartbeat;
  const auto patience = lost_after();
  if (!own || !patience || own->progress.operation.empty()) return std::nullopt;
  if (since(rank_, now) < *patience) return std::nullopt;
  std::vector<int64_t> ranks;
  for (const int64_t rank : others()) {
    if (!is_silent(rank, now, *patience)) continue;
    if (seen(rank).heartbeat && is_excused(*seen(rank).heartbeat)) return std::nullopt;
    ranks.push_back(rank);
  }
  if (ranks.empty()) return std::nullopt;
  return "has waited in " + operation_text(own->progress) + " for " +
         seconds_text(since(rank_, now)) + ", and " + places(now, ranks) + ". " +
         (is_one(ranks) ? "Its process is stopped or cut off, or its machine is gone"
                        : "Their processes are stopped or cut off, or their machines are gone") +
         "; to wait longer, raise process_group.monitor.lost_after";
}

// --- Warnings -------------------------------------------------------------------------------------

// The first process that is alive does.
bool Watch::says(double now) const {
  const double patience = std::max(stuck_after_, silent_after_);
  for (int64_t rank = 0; rank < rank_; ++rank)
    if (is_running(rank) && !is_silent(rank, now, patience)) return false;
  return true;
}

std::vector<std::string> Watch::warnings(double now) {
  std::vector<std::string> texts;
  if (!looking_ || !says(now)) return texts;
  say_silent(now, texts);
  say_goes_on(now, texts);
  // A process that does not answer is the reason for all other waits.
  if (said_silent_.empty()) say_stuck(now, texts);
  if (rank_ == 0) say_slow(texts);
  return texts;
}

// Processes that have been in an operation for too long.
std::vector<int64_t> Watch::waiting(double now) const {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const auto& heartbeat = seen(rank).heartbeat;
    if (!heartbeat || !is_running(rank) || heartbeat->progress.operation.empty()) continue;
    if (is_silent(rank, now, std::max(stuck_after_, silent_after_))) continue;
    if (since(rank, now) >= stuck_after_) ranks.push_back(rank);
  }
  return ranks;
}

void Watch::say_silent(double now, std::vector<std::string>& texts) {
  for (int64_t rank = 0; rank < size_; ++rank) {
    const auto said = said_silent_.find(rank);
    if (is_silent(rank, now, std::max(stuck_after_, silent_after_))) {
      const double duration = now - seen(rank).at;
      if (said != said_silent_.end() && duration < 2 * said->second.at) continue;
      said_silent_[rank] = {.at = duration, .since = seen(rank).at};
      std::string text = ranks_text({rank}) + " has not answered for " + seconds_text(duration);
      if (seen(rank).heartbeat) text += "; when last heard, it " + place(rank).replace(0, 2, "was");
      texts.push_back(text + ". Its process is stopped or cut off, or its machine is overloaded");
    } else if (said != said_silent_.end()) {
      if (is_running(rank))
        texts.push_back(ranks_text({rank}) + " answers again, after " +
                        seconds_text(seen(rank).at - said->second.since));
      said_silent_.erase(said);
    }
  }
}

void Watch::say_stuck(double now, std::vector<std::string>& texts) {
  const auto ranks = waiting(now);
  if (ranks.empty()) return;
  // The processes that are furthest ahead wait for all others.
  int64_t number = 0;
  for (const int64_t rank : ranks) number = std::max(number, seen(rank).heartbeat->progress.number);
  std::vector<int64_t> waiters;
  for (const int64_t rank : ranks)
    if (seen(rank).heartbeat->progress.number == number) waiters.push_back(rank);
  std::vector<int64_t> late;
  double duration = since(waiters.front(), now);
  for (const int64_t rank : waiters) duration = std::min(duration, since(rank, now));
  // If the wait is not a collective, nobody knows who has reached it; processes that do not wait
  // have not.
  const bool collective = seen(waiters.front()).heartbeat->progress.collective;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const auto& heartbeat = seen(rank).heartbeat;
    const bool there = heartbeat && heartbeat->progress.number >= number &&
                       (collective || !heartbeat->progress.operation.empty());
    if (there || !is_running(rank)) continue;
    late.push_back(rank);
    duration = std::min(duration, since(rank, now));
  }
  if (duration < stuck_after_) return;  // one of them still moves: it is only slow
  if (stuck_ && stuck_->number == number && duration < 2 * stuck_->said.at) return;

  const std::string operation = operation_text(seen(waiters.front()).heartbeat->progress);
  stuck_ = {.number = number,
            .behind = late,
            .operation = operation,
            .said = {.at = duration, .since = now - duration}};
  std::string text;
  for (const int64_t rank : late)
    text += (text.empty() ? "" : "; ") + ranks_text({rank}) + " " + place(rank) + ", for " +
            seconds_text(since(rank, now));
  text += (text.empty() ? "" : "; ") + ranks_text(waiters) +
          (late.empty()      ? " made no progress in "
           : is_one(waiters) ? " waits in "
                             : " wait in ") +
          operation;
  if (late.empty()) text += " for " + seconds_text(duration) + ", though all have come so far";
  texts.push_back(text);
}

void Watch::say_goes_on(double now, std::vector<std::string>& texts) {
  if (!stuck_) return;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const auto& heartbeat = seen(rank).heartbeat;
    const bool still_there =
        heartbeat && is_running(rank) && !heartbeat->progress.operation.empty() &&
        heartbeat->progress.number == stuck_->number && since(rank, now) >= stuck_after_;
    if (still_there) return;
  }
  texts.push_back((stuck_->behind.empty() ? stuck_->operation : ranks_text(stuck_->behind)) +
                  (stuck_->behind.size() > 1 ? " go" : " goes") + " on, after " +
                  seconds_text(now - stuck_->said.since));
  stuck_.reset();
}

void Watch::say_slow(std::vector<std::string>& texts) {
  if (options_.straggler_factor <= 0) return;
  constexpr double smallest = 0.001;  // below this it is noise
  std::vector<double> times;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const auto& heartbeat = seen(rank).heartbeat;
    if (!heartbeat || heartbeat->state != ProcessState::running) return;
    if (heartbeat->progress.busy_steps < options_.straggler_steps) return;
    times.push_back(heartbeat->progress.busy);
  }
  // The lower median of an even number, so that one of two processes can be slow.
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2);
  std::nth_element(times.begin(), middle, times.end());
  const double median = *middle;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const ProgressSnapshot& progress = seen(rank).heartbeat->progress;
    if (progress.busy <= options_.straggler_factor * median || progress.busy - median < smallest)
      continue;
    int64_t& next = next_slow_step_[rank];
    if (progress.step < next) continue;
    next = 2 * std::max<int64_t>(progress.step, options_.straggler_steps);
    char factor[32];
    std::snprintf(factor, sizeof(factor), "%.1f", progress.busy / std::max(median, 1e-9));
    texts.push_back(ranks_text({rank}) + " takes " + factor + " times the median step (" +
                    milliseconds_text(progress.busy) + " against " + milliseconds_text(median) +
                    ")");
  }
}

}  // namespace accelerant::dist
