#include "launch/rank_group.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <utility>

#include "accelerant/core/detail/own_process.h"
#include "launch/rank_variables.h"

namespace accelerant::launch {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A process that survives SIGKILL hangs in the kernel; it is reported and left alone.
constexpr milliseconds kPatienceAfterKill = std::chrono::seconds(10);
// How often to check whether what ranks left behind is gone; usually it is at once.
constexpr milliseconds kFirstLeftoverInterval = milliseconds(1);
constexpr milliseconds kLastLeftoverInterval = milliseconds(32);
// How often to check whether a rank that has used up its grace is still saving.
constexpr milliseconds kSavingInterval = milliseconds(100);

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

struct Member {
  ChildProcess child = {};
  std::string error_file = {};
  RankResult result = {};
  bool ended = false;       // the rank itself
  bool group_gone = false;  // and everything in its process group
};

class RankGroup {
 public:
  RankGroup(OutputReceiver& receiver, const RankGroupOptions& options)
      : receiver_(receiver), options_(options) {}

  // After an exception ranks may be running.
  ~RankGroup() {
    if (!process_.is_this_one()) return;  // a child forked by what receives the output
    signal_all(SIGKILL);
    for (Member& member : members_) {
      if (!member.ended && !given_up_) ::waitpid(member.child.pid, nullptr, 0);
      forget(member);
    }
  }
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  RankGroupResult run(std::vector<RankStart> starts) {
    if (options_.timeout) timeout_at_ = Clock::now() + *options_.timeout;
    for (RankStart& start : starts) add(start);
    while (!is_over()) {
      wait();
      take_signals();
      read_output();
      receiver_.write_pending();
      reap();
      look_at_the_clock();
    }
    for (Member& member : members_) {
      drain(member, Stream::out);
      drain(member, Stream::err);
      read_error(member);
      ::unlink(saving_file_of(member.error_file).c_str());
    }
    RankGroupResult result = {.ranks = {}, .signal = signal_, .timed_out = timed_out_};
    for (Member& member : members_) result.ranks.push_back(std::move(member.result));
    return result;
  }

 private:
  enum class State { running, stopping, killing };

  void add(RankStart& start) {
    start.command.inherited_fd = start.inherited.get();
    Member& member = members_.emplace_back();
    member.result.rank = start.rank;
    member.error_file = start.error_file;
    try {
      member.child = start_child(start.command);
    } catch (...) {
      members_.pop_back();
      throw;
    }
    if (options_.guardian != nullptr) options_.guardian->watch(member.child.pid);
    start.inherited.reset();
  }

  bool all_ended() const { return std::ranges::all_of(members_, &Member::ended); }
  bool is_over() const { return given_up_ || std::ranges::all_of(members_, &Member::group_gone); }

  // --- waiting ---

  void wait() {
    entries_.clear();
    if (options_.signals != nullptr) entries_.push_back({options_.signals->fd(), POLLIN, 0});
    for (const Member& member : members_) {
      if (!member.ended && member.child.pidfd.is_open()) {
        entries_.push_back({member.child.pidfd.get(), POLLIN, 0});
      }
      for (const Stream stream : {Stream::out, Stream::err}) {
        const Fd& pipe = pipe_of(member, stream);
        if (pipe.is_open() && !receiver_.is_congested(stream)) {
          entries_.push_back({pipe.get(), POLLIN, 0});
        }
      }
    }
    receiver_.add_poll_entries(entries_);
    ::poll(entries_.data(), entries_.size(), static_cast<int>(time_to_wait().count()));
  }

  milliseconds time_to_wait() const {
    milliseconds time = options_.monitor_interval;
    if (all_ended()) time = std::min(time, leftover_interval_);  // nothing notifies us of their end
    const Clock::time_point now = Clock::now();
    for (const auto& moment : {timeout_at_, next_step_at_, notice_at_}) {
      if (!moment) continue;
      time = std::min(time, std::chrono::ceil<milliseconds>(*moment - now));
    }
    return std::max(time, milliseconds(0));
  }

  void look_at_the_clock() {
    const Clock::time_point now = Clock::now();
    if (timeout_at_ && now >= *timeout_at_ && !all_ended()) {
      timed_out_ = true;
      timeout_at_.reset();
      kill_all();
    }
    if (notice_at_ && now >= *notice_at_) {
      notice_at_.reset();
      tell_who_still_runs();
    }
    if (!next_step_at_ || now < *next_step_at_) return;
    if (state_ == State::killing) {
      give_up();
    } else if (now < saving_until_ && is_saving()) {
      next_step_at_ = std::min(now + kSavingInterval, saving_until_);
    } else if (state_ == State::stopping) {
      kill_all();
    } else {
      stop(SIGTERM);
    }
  }

  bool is_saving() const {
    return std::ranges::any_of(members_, [](const Member& member) {
      return !member.ended && ::access(saving_file_of(member.error_file).c_str(), F_OK) == 0;
    });
  }

  // The next step is at the end of the grace.
  void begin_grace() {
    next_step_at_ = Clock::now() + options_.grace;
    saving_until_ = Clock::now() + std::max(options_.grace, options_.saving_grace);
  }

  // Once the ranks are being stopped, the report will say it.
  void tell_who_still_runs() const {
    if (state_ != State::running || all_ended()) return;
    std::vector<int64_t> ended;
    std::vector<int64_t> running;
    for (const Member& member : members_) {
      (member.ended ? ended : running).push_back(member.result.rank);
    }
    options_.on_still_running(ended, running);
  }

  // --- output ---

  static const Fd& pipe_of(const Member& member, Stream stream) {
    return stream == Stream::out ? member.child.out : member.child.err;
  }
  static Fd& pipe_of(Member& member, Stream stream) {
    return stream == Stream::out ? member.child.out : member.child.err;
  }

  // Whether there may be more.
  bool read_some(Member& member, Stream stream) {
    Fd& pipe = pipe_of(member, stream);
    const ssize_t size = ::read(pipe.get(), buffer_.data(), buffer_.size());
    if (size < 0 && errno == EINTR) return true;
    if (size < 0) return false;  // nothing at the moment
    if (size == 0) {
      pipe.reset();
      return false;
    }
    receiver_.receive(static_cast<size_t>(&member - members_.data()), stream,
                      {buffer_.data(), static_cast<size_t>(size)});
    return true;
  }

  void read_output() {
    for (Member& member : members_) {
      for (const Stream stream : {Stream::out, Stream::err}) {
        if (pipe_of(member, stream).is_open() && !receiver_.is_congested(stream)) {
          read_some(member, stream);
        }
      }
    }
  }

  // Reads what is in the pipe, but not until its end: a daemon may hold it open forever.
  void drain(Member& member, Stream stream) {
    while (pipe_of(member, stream).is_open() && read_some(member, stream)) {
    }
  }

  // --- ends ---

  void reap() {
    if (collect_ended()) stop(SIGTERM);
    if (all_ended()) clear_leftovers();
  }

  // Whether one of them failed on its own. Whoever ended before anybody was stopped did.
  bool collect_ended() {
    const bool by_itself = state_ == State::running;
    bool failure = false;
    for (Member& member : members_) {
      if (member.ended || !collect(member)) continue;
      // Ranks that lost another one may end before we see that it was killed. So far we have only
      // asked ranks to stop, so somebody else killed it.
      const bool was_killed = state_ == State::stopping && member.result.signal == SIGKILL;
      member.result.stopped = !by_itself && !was_killed;
      failure = failure || member.result.failed();
      if (member.result.preempted() && by_itself && !next_step_at_) begin_grace();
      if (options_.notice_after && by_itself && member.result.exit_code == 0 && !notice_is_armed_) {
        notice_is_armed_ = true;
        notice_at_ = Clock::now() + *options_.notice_after;
      }
    }
    return failure;
  }

  bool collect(Member& member) {
    int status = 0;
    if (::waitpid(member.child.pid, &status, WNOHANG) != member.child.pid) return false;
    member.ended = true;
    member.result.end_time = seconds_since_1970();
    member.result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    member.result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    update_group(member);
    return true;
  }

  // Orphans of a rank become our children if this process is a launcher; otherwise init's.
  void update_group(Member& member) {
    const pid_t group = member.child.pid;
    while (::waitpid(-group, nullptr, WNOHANG) > 0) {
    }
    if (::kill(-group, 0) == 0 || errno == EPERM) return;
    member.group_gone = true;
    forget(member);
  }

  // What ranks leave running in their process groups ends with them.
  void clear_leftovers() {
    for (Member& member : members_) {
      if (!member.group_gone) update_group(member);
    }
    if (is_over()) return;
    leftover_interval_ = std::min(2 * leftover_interval_, kLastLeftoverInterval);
    if (options_.signals == nullptr) {
      signal_all(SIGKILL);
      give_up();
    } else if (state_ == State::running) {
      stop(SIGTERM);
    }
  }

  void give_up() {
    given_up_ = true;
    for (Member& member : members_) {
      if (member.ended) continue;
      member.result.stopped = true;
      member.result.signal = SIGKILL;
      member.result.exit_code = 128 + SIGKILL;
    }
  }

  void read_error(Member& member) {
    RankResult& result = member.result;
    result.error = read_error_report(member.error_file);
    if (!result.error) return;
    result.error->time = exact_time(*result.error, member.error_file, result.end_time);
    // It had already failed and was about to end when it was stopped.
    if (result.stopped && result.exit_code != 0 && result.error->time < stopped_at_) {
      result.stopped = false;
      if (result.signal != 0) {  // ours
        result.signal = 0;
        result.exit_code = 1;
      }
    }
  }

  // The time in Python's reports is in whole seconds; that of the file is more precise.
  static double exact_time(const ErrorReport& report, const std::string& path, double end_time) {
    if (report.time != std::floor(report.time)) return report.time;
    struct stat file = {};
    if (::stat(path.c_str(), &file) != 0) return end_time;
    return static_cast<double>(file.st_mtim.tv_sec) +
           1e-9 * static_cast<double>(file.st_mtim.tv_nsec);
  }

  // --- stopping ---

  void take_signals() {
    if (options_.signals == nullptr) return;
    while (const auto signal = options_.signals->next()) {
      if (*signal == SIGUSR1) {
        signal_all(*signal);
      } else if (state_ == State::running) {
        signal_ = *signal;
        stop(*signal);
      } else if (*signal == SIGINT) {  // the second Ctrl-C, or one during the grace
        if (signal_ == 0) signal_ = *signal;
        kill_all();
      } else {
        if (signal_ == 0) signal_ = *signal;
        signal_all(*signal);
      }
    }
  }

  void stop(int signal) {
    if (state_ != State::running) return;
    collect_ended();  // ranks that have ended by now were not stopped
    state_ = State::stopping;
    stopped_at_ = seconds_since_1970();
    begin_grace();
    signal_all(signal);
    signal_all(SIGCONT);  // a stopped process does not get the signal before
  }

  void kill_all() {
    if (state_ == State::killing) return;
    if (state_ == State::running) stopped_at_ = seconds_since_1970();
    state_ = State::killing;
    next_step_at_ = Clock::now() + kPatienceAfterKill;
    signal_all(SIGKILL);
  }

  void signal_all(int signal) {
    for (const Member& member : members_) {
      if (!member.group_gone) ::kill(-member.child.pid, signal);
    }
  }

  void forget(const Member& member) {
    if (options_.guardian != nullptr) options_.guardian->forget(member.child.pid);
  }

  OutputReceiver& receiver_;
  const RankGroupOptions& options_;
  std::vector<Member> members_;
  State state_ = State::running;
  int signal_ = 0;
  bool timed_out_ = false;
  bool given_up_ = false;
  bool notice_is_armed_ = false;
  double stopped_at_ = 0;
  milliseconds leftover_interval_ = kFirstLeftoverInterval;
  std::optional<Clock::time_point> timeout_at_;
  // The next step of stopping: SIGTERM if a rank has ended on request, else SIGKILL, then giving up.
  std::optional<Clock::time_point> next_step_at_;
  Clock::time_point saving_until_ = {};  // how long the next step waits for ranks that save
  std::optional<Clock::time_point> notice_at_;
  std::vector<pollfd> entries_;
  const accelerant::detail::OwnProcess process_;
  std::array<char, 65536> buffer_ = {};
};

}  // namespace

RankGroupResult run_rank_group(std::vector<RankStart> starts, OutputReceiver& receiver,
                               const RankGroupOptions& options) {
  return RankGroup(receiver, options).run(std::move(starts));
}

}  // namespace accelerant::launch
