// Conclusions from the heartbeats of all processes: who holds the others up, who can never meet, who
// is slow. No threads, no clock and no store: times are passed in, in seconds, so that tests can
// present any history. Monitor (monitor.h) is the thread around it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/watch/process_group_options.h"
#include "watch/heartbeat.h"

namespace accelerant::dist {

// Options have times in milliseconds, heartbeats in seconds.
inline double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

class Watch {
 public:
  Watch(int64_t rank, int64_t size, const MonitorOptions& options);

  // All heartbeats as read at `now`, and this process's own as it is; nothing for a process that has
  // not written yet.
  void observe(double now, const std::vector<std::optional<Heartbeat>>& heartbeats);

  // What to warn about now: everything once, and again at doubled intervals. Only one process warns:
  // the first that is alive, as far as this one can tell.
  std::vector<std::string> warnings(double now);

  // Why this process is blocked forever: it is in a collective, and another process has begun a
  // different one with the same number, or has left before it. No later heartbeat can change either,
  // so one reading is enough, however old it is. The text has no subject: its reader knows the rank.
  std::optional<std::string> mismatch(double now) const;

  // Why this process would wait in vain: it has waited for others for `lost_after`, and one of them
  // has not written anything all this time. Nothing while `is_excused` says of such a process that
  // there is a reason. The text has no subject either.
  std::optional<std::string> lost(double now,
                                  const std::function<bool(const Heartbeat&)>& is_excused) const;

  // This process was stopped itself, or could not read or write: the silence of others counts from
  // now on only.
  void begin_again(double now);

  // How long a process must be silent to be lost; nothing if that is never.
  std::optional<double> lost_after() const;

  // What these processes were last seen doing: "rank 0 is at step 3, in gather (exchange 12); ranks
  // ...".
  std::string places(double now, const std::vector<int64_t>& ranks) const;

  // The processes that this one waits for, and where they are.
  std::string who_is_late(double now) const;

  // Processes that are running, as far as is known, and have not written for three intervals.
  std::vector<int64_t> silent(double now) const;

  // Processes that are running, as far as is known, and have begun fewer collectives than this one.
  std::vector<int64_t> behind() const;

  const std::optional<Heartbeat>& heartbeat(int64_t rank) const;

 private:
  struct Seen {
    std::optional<Heartbeat> heartbeat = {};
    double at = 0;  // when the heartbeat was first read; without one: when looking began
  };
  // How long something had lasted when it was last said, and since when it lasts.
  struct Said {
    double at = 0;
    double since = 0;
  };
  // Waits that were reported, until they end.
  struct Stuck {
    int64_t number = 0;
    std::vector<int64_t> behind = {};
    std::string operation = {};
    Said said = {};
  };

  const Seen& seen(int64_t rank) const { return seen_[static_cast<size_t>(rank)]; }
  bool is_running(int64_t rank) const;
  bool is_silent(int64_t rank, double now, double after) const;
  double since(int64_t rank, double now) const;
  std::string place(int64_t rank) const;
  std::vector<int64_t> others() const;
  std::string made_instead(int64_t rank, int64_t number, const std::string& operation) const;
  bool says(double now) const;
  std::vector<int64_t> waiting(double now) const;

  void say_silent(double now, std::vector<std::string>& texts);
  void say_stuck(double now, std::vector<std::string>& texts);
  void say_goes_on(double now, std::vector<std::string>& texts);
  void say_slow(std::vector<std::string>& texts);

  int64_t rank_;
  int64_t size_;
  MonitorOptions options_;
  double stuck_after_;
  double silent_after_;
  bool looking_ = false;
  std::vector<Seen> seen_;
  std::map<int64_t, Said> said_silent_;
  std::optional<Stuck> stuck_;
  std::map<int64_t, int64_t> next_slow_step_;
};

}  // namespace accelerant::dist
