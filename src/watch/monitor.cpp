#include "watch/monitor.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "core/launch_contract.h"
#include "core/process_end.h"
#include "core/texts.h"
#include "watch/whereabouts.h"

namespace accelerant::dist {
namespace {

using std::chrono::milliseconds;

// How often to check whether there is something to do: much more often than a heartbeat is due, so
// that waits are noticed.
milliseconds tick_of(const MonitorOptions& options) {
  return std::max(milliseconds(1), std::min({options.interval, options.mismatch_after / 2,
                                             options.stuck_after, milliseconds(1000)}));
}

// Steps are written more often than once per interval, so that the last one known of a process that
// has stopped is not an old one. But all processes together write at most 200 times a second.
double step_interval_of(const MonitorOptions& options, milliseconds tick, int64_t size) {
  return std::min(seconds(options.interval),
                  std::max(seconds(tick), static_cast<double>(size) / 200));
}

bool same_place(const ProgressSnapshot& one, const ProgressSnapshot& other) {
  return one.number == other.number && one.step == other.step && one.operation == other.operation;
}

}  // namespace

void end_process_for(const std::string& error, int64_t rank, int64_t step) {
  ErrorReport report{.message = error, .rank = rank};
  if (step > 0) report.step = step;  // before the first backward there is none
  log(LogLevel::error, (step > 0 ? "in step " + std::to_string(step) + ": " : "") + error);
  if (const auto path = own_error_file()) write_error_report(*path, report);
  end_process(1);
}

Monitor::Monitor(int64_t rank, int64_t size, const MonitorOptions& options,
                 std::unique_ptr<Board> board, const Progress& progress,
                 std::function<void(const std::string&)> on_mismatch)
    : rank_(rank),
      size_(size),
      options_(options),
      tick_(tick_of(options)),
      step_interval_(step_interval_of(options, tick_, size)),
      board_(std::move(board)),
      progress_(progress),
      on_mismatch_(std::move(on_mismatch)),
      watch_(rank, size, options) {
  if (!on_mismatch_)
    on_mismatch_ = [this](const std::string& error) {
      end_process_for(error, rank_, progress_.step());
    };
  thread_ = std::thread([this] { run(); });
}

Monitor::~Monitor() { stop(); }

void Monitor::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stopping_, true)) return;
    changed_.notify_all();
  }
  thread_.join();
  const std::lock_guard lock(mutex_);
  if (state_ == ProcessState::running) {
    const bool by_exception = std::uncaught_exceptions() > 0;
    state_ = by_exception ? ProcessState::failed : ProcessState::left;
    if (by_exception) failure_ = "an exception";
  }
  write(progress_.snapshot());
  board_->flush(milliseconds(50));
}

void Monitor::fail(ProcessState how, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (state_ != ProcessState::running) return;
  state_ = how;
  failure_ = message;
  write(progress_.snapshot());
  board_->flush(milliseconds(50));
}

// With the mutex held. Processes that have not reported anything count as running.
std::vector<int64_t> Monitor::in_state(ProcessState state) const {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const auto& heartbeat = watch_.heartbeat(rank);
    if (rank != rank_ && (heartbeat ? heartbeat->state : ProcessState::running) == state)
      ranks.push_back(rank);
  }
  return ranks;
}

EndOfOthers Monitor::who_ended(milliseconds timeout) {
  const auto deadline = Progress::Clock::now() + timeout;
  std::unique_lock lock(mutex_, std::defer_lock);
  bool answered = false;
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - Progress::Clock::now());
    if (left.count() <= 0 || !read(left)) break;
    answered = true;
    lock.lock();
    if (!in_state(ProcessState::failed).empty() || in_state(ProcessState::running).size() <= 1)
      break;
    changed_.wait_for(lock, milliseconds(20));
    lock.unlock();
  }
  if (!answered)
    return {.cause =
                "the store does not answer either: the process that serves it (rank 0, or the "
                "launcher) has ended or is cut off",
            .hint = "look at the end of its output"};
  if (!lock.owns_lock()) lock.lock();

  const auto output_of = [](const std::vector<int64_t>& ranks) {
    return std::string("look at the end of ") + (ranks.size() == 1 ? "its" : "their") + " output";
  };
  std::string text;
  const auto say = [&](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  const auto failed = in_state(ProcessState::failed);
  for (const int64_t rank : failed)
    say(ranks_text({rank}) + " failed: " + watch_.heartbeat(rank)->message);
  if (!failed.empty()) return {.cause = text, .hint = output_of(failed)};
  const auto finished = in_state(ProcessState::left);
  if (!finished.empty())
    say(ranks_text(finished) + (finished.size() == 1 ? " has" : " have") + " left the run");
  const auto quiet = in_state(ProcessState::running);
  if (quiet.size() == 1) say(ranks_text(quiet) + " has ended without a word");
  if (quiet.size() > 1) say("of " + ranks_text(quiet) + " at least one has ended without a word");
  if (!quiet.empty())
    return {.cause = text,
            .hint = output_of(quiet) + ", and whether a signal or exhausted memory ended it"};
  if (!finished.empty())
    return {
        .cause = text,
        .hint = "all processes must make the same exchanges: look for loops of different length"};
  return {.cause = "all others have lost a connection too",
          .hint = "look for the first error in their output"};
}

std::string Monitor::who_is_late(milliseconds timeout) {
  const bool answered = read(timeout);
  const std::lock_guard lock(mutex_);
  return (answered ? "" : "the store does not answer; when it last did, ") +
         watch_.who_is_late(now());
}

std::string Monitor::who_has_failed(milliseconds timeout) {
  read(timeout);
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> gone = in_state(ProcessState::failed);
  if (gone.empty())
    gone = in_state(ProcessState::lost);  // mostly because of one that died silently
  return gone.empty() ? "" : watch_.places(now(), gone);
}

double Monitor::now() const {
  return std::chrono::duration<double>(Progress::Clock::now().time_since_epoch()).count();
}

// With the mutex held.
void Monitor::write(const ProgressSnapshot& progress) {
  written_ = Heartbeat{.beat = ++beats_,
                       .state = state_,
                       .message = failure_,
                       .progress = progress,
                       .whereabouts = own_whereabouts()};
  board_->write(to_json(*written_));
  // Most processes read only while they wait. The oldest of many unread ones is what counts.
  if (unread_beats_.size() < 100) unread_beats_.emplace_back(beats_, now());
}

bool Monitor::read(milliseconds timeout) {
  const auto texts = board_->read(timeout);
  if (!texts) return false;
  std::vector<std::optional<Heartbeat>> heartbeats;
  for (const std::string& text : *texts) heartbeats.push_back(heartbeat_of(text));
  const std::lock_guard lock(mutex_);
  heartbeats.resize(static_cast<size_t>(size_));
  note_delay(now(), heartbeats[static_cast<size_t>(rank_)]);
  heartbeats[static_cast<size_t>(rank_)] =
      Heartbeat{.beat = beats_, .state = state_, .progress = progress_.snapshot()};
  watch_.observe(now(), heartbeats);
  return true;
}

bool Monitor::is_time_to_write(double now, const ProgressSnapshot& progress) const {
  if (!written_ || now - wrote_at_ >= seconds(options_.interval)) return true;
  const bool steps = progress.step != written_->progress.step;
  if (steps && now - wrote_at_ >= step_interval_) return true;
  const bool waits = !progress.operation.empty() && progress.since >= seconds(tick_);
  return waits && !same_place(progress, written_->progress);
}

// Process 0 reads regularly; the others only while they wait, so that not all of many processes read
// what all of them write.
bool Monitor::is_time_to_read(double now, const ProgressSnapshot& progress) const {
  const bool waits =
      !progress.operation.empty() && progress.since >= seconds(options_.mismatch_after);
  const bool waits_long = progress.since >= 5 * seconds(options_.mismatch_after);
  if (waits && !waits_long) return true;
  // Process 0 once in any case, whose debugger excuses it if the store that it serves falls silent.
  if (rank_ != 0 && !waits && watch_.heartbeat(0)) return false;
  return !has_read_ || now - read_at_ >= seconds(options_.interval);
}

// How long this process may be unable to look before what it missed makes others seem silent.
double Monitor::longest_pause() const {
  const double patience = watch_.lost_after().value_or(seconds(options_.stuck_after));
  return std::max({1.0, 3 * seconds(tick_), patience / 4});
}

// With the mutex held. If this thread has not had a turn for long, the whole process was stopped,
// perhaps together with the others: by Ctrl-Z, by the scheduler of a cluster.
void Monitor::note_pause(double now) {
  if (turned_at_ > 0 && now - turned_at_ > longest_pause()) {
    watch_.begin_again(now);
    unanswered_since_.reset();
    unread_beats_.clear();
  }
  turned_at_ = now;
}

// With the mutex held. A store that takes long to show what this process has written takes as long
// with what the others write.
void Monitor::note_delay(double now, const std::optional<Heartbeat>& own) {
  while (own && !unread_beats_.empty() && unread_beats_.front().first <= own->beat)
    unread_beats_.pop_front();
  if (!unread_beats_.empty() && now - unread_beats_.front().second > longest_pause())
    watch_.begin_again(now);
}

void Monitor::warn_of_store(double now) {
  const std::string error = board_->last_error();
  if (!error.empty() && !std::exchange(said_error_, true))
    log(LogLevel::debug, "cannot read the heartbeats: " + error);
  const double patience = std::max(seconds(options_.stuck_after), 3 * seconds(options_.interval));
  const double silence = now - unanswered_since_.value_or(now);
  if (silence < patience || silence < 2 * said_no_answer_) return;
  said_no_answer_ = silence;
  speaker_.warn("the store has not answered for " + std::to_string(static_cast<int64_t>(silence)) +
                " s: the process that serves it (rank 0, or the launcher) is stopped, "
                "has ended or is cut off");
}

void Monitor::miss_answer(double asked_at, const ProgressSnapshot& progress) {
  const auto answer = board_->last_answer();
  const double answered_at =
      answer ? std::chrono::duration<double>(answer->time_since_epoch()).count() : 0;
  if (!unanswered_since_) unanswered_since_ = asked_at;
  unanswered_since_ = std::max(*unanswered_since_, answered_at);  // late, but it does answer
  warn_of_store(now());
  std::optional<std::string> in_vain;
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_ && state_ == ProcessState::running) in_vain = lost_store(now(), progress);
  }
  if (in_vain) give_up(*in_vain, progress);
}

// With the mutex held.
std::optional<std::string> Monitor::lost_store(double now, const ProgressSnapshot& progress) const {
  const auto patience = watch_.lost_after();
  const double silence = now - unanswered_since_.value_or(now);
  if (!patience || progress.operation.empty() || progress.since < *patience || silence < *patience)
    return std::nullopt;
  const auto& server = watch_.heartbeat(0);  // or the launcher
  if (server && is_traced(server->whereabouts)) return std::nullopt;
  return "has waited in " + progress.operation + " for " +
         std::to_string(static_cast<int64_t>(progress.since)) +
         " s, and the store has not answered for " + std::to_string(static_cast<int64_t>(silence)) +
         " s: the process that serves it (rank 0, or the launcher) is stopped, has ended or is cut "
         "off; to wait longer, raise process_group.monitor.lost_after";
}

// Not if this process has moved on after all, for example by an exception.
void Monitor::give_up(const std::string& why, const ProgressSnapshot& progress) {
  if (!on_mismatch_ || !same_place(progress_.snapshot(), progress)) return;
  fail(ProcessState::failed, why);
  std::exchange(on_mismatch_, nullptr)(why);
}

// Without the mutex.
void Monitor::look(const ProgressSnapshot& progress) {
  const double asked_at = now();
  if (!read(milliseconds(250))) return miss_answer(asked_at, progress);
  unanswered_since_.reset();
  said_no_answer_ = 0;
  std::optional<std::string> in_vain;
  std::vector<std::string> warnings;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || state_ != ProcessState::running) return;
    in_vain = watch_.mismatch(now());
    if (!in_vain) {
      in_vain =
          watch_.lost(now(), [](const Heartbeat& silent) { return is_traced(silent.whereabouts); });
    }
    warnings = watch_.warnings(now());
  }
  for (const std::string& warning : warnings) speaker_.warn(warning);
  if (in_vain) give_up(*in_vain, progress);
}

void Monitor::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const auto progress = progress_.snapshot();
    const double time = now();
    note_pause(time);
    if (state_ == ProcessState::running && is_time_to_write(time, progress)) {
      write(progress);
      wrote_at_ = time;
    }
    if (is_time_to_read(time, progress)) {
      read_at_ = time;
      has_read_ = true;
      lock.unlock();
      look(progress);
      lock.lock();
    }
    if (!stopping_) changed_.wait_for(lock, tick_);
  }
}

}  // namespace accelerant::dist
