// The thread that tells the other processes what this one is doing, and warns about what they do.
// accelerant/watch/process_group_options.h describes its messages, watch.h its conclusions.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "accelerant/watch/process_group_options.h"
#include "watch/board.h"
#include "watch/progress.h"
#include "watch/speaker.h"
#include "watch/watch.h"

namespace accelerant::dist {

// Logs the text, which names neither rank nor step, as an error, writes the error report and ends
// the process at once: its threads are stuck in waits that cannot be cancelled.
[[noreturn]] void end_process_for(const std::string& error, int64_t rank, int64_t step);

// Why a connection was closed, and what to do about it.
struct EndOfOthers {
  std::string cause = {};
  std::string hint = {};
};

// Every process of a run has one, with the same options. Borrows the progress.
class Monitor {
 public:
  // The thread calls `on_mismatch` once, when this process waits for something that can never
  // happen, or for a process that is lost. Default: it ends the process.
  Monitor(int64_t rank, int64_t size, const MonitorOptions& options, std::unique_ptr<Board> board,
          const Progress& progress, std::function<void(const std::string&)> on_mismatch = {});
  // Calls stop().
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // Tells the others that this process has left the run, and ends the thread. Takes milliseconds,
  // even if the store does not answer.
  void stop();

  // Tells the others that this process is about to end, and why: by an error of its own (failed),
  // or because an exchange with them failed (lost). Only the first call counts.
  void fail(ProcessState how, const std::string& message);

  // Who is to blame for a failed exchange, as far as the store tells within `timeout`.
  //
  // A connection was closed: who has failed or left. A process that was killed says nothing; all
  // others soon report that they have lost a connection (fail), so it is the one that does not.
  EndOfOthers who_ended(std::chrono::milliseconds timeout);
  // An exchange took too long: who is behind or does not answer, and where they are.
  std::string who_is_late(std::chrono::milliseconds timeout);
  // While waiting for something other than an exchange: which processes have failed or lost others,
  // and so will never come. Empty if none, or if the store does not tell within `timeout`.
  std::string who_has_failed(std::chrono::milliseconds timeout);

 private:
  void run();
  void look(const ProgressSnapshot& progress);
  void write(const ProgressSnapshot& progress);
  // True if there was an answer.
  bool read(std::chrono::milliseconds timeout);
  bool is_time_to_write(double now, const ProgressSnapshot& progress) const;
  bool is_time_to_read(double now, const ProgressSnapshot& progress) const;
  double longest_pause() const;
  void note_pause(double now);
  void note_delay(double now, const std::optional<Heartbeat>& own);
  void miss_answer(double asked_at, const ProgressSnapshot& progress);
  void warn_of_store(double now);
  std::optional<std::string> lost_store(double now, const ProgressSnapshot& progress) const;
  void give_up(const std::string& why, const ProgressSnapshot& progress);
  std::vector<int64_t> in_state(ProcessState state) const;
  double now() const;

  const int64_t rank_;
  const int64_t size_;
  const MonitorOptions options_;
  const std::chrono::milliseconds tick_;
  const double step_interval_;  // between writes while the step changes
  const std::unique_ptr<Board> board_;
  const Progress& progress_;
  std::function<void(const std::string&)> on_mismatch_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  ProcessState state_ = ProcessState::running;
  std::string failure_;
  int64_t beats_ = 0;
  std::optional<Heartbeat> written_;
  std::deque<std::pair<int64_t, double>> unread_beats_;  // written, when, and not yet read again
  Watch watch_;

  // Used only by the thread.
  double turned_at_ = 0;
  double wrote_at_ = 0;
  double read_at_ = 0;
  bool has_read_ = false;
  std::optional<double> unanswered_since_;  // when the store was first silent
  double said_no_answer_ = 0;               // how long it had been silent when that was last said
  bool said_error_ = false;
  Speaker speaker_;

  std::thread thread_;
};

}  // namespace accelerant::dist
