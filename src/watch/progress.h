// What this process is doing now, for the monitor and for messages: the step, and the exchange with
// other processes that it is in. Beginning and ending an exchange costs about 100 ns.
//
//   progress.begin_step();
//   { const auto operation = progress.collective("gather"); ... }   // waits for the others in here
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace accelerant::dist {

// A copy of it. Times are in seconds.
struct ProgressSnapshot {
  int64_t step = 0;    // backwards begun so far
  int64_t number = 0;  // collectives begun so far; the number of the one under way, if `collective`

  std::string operation = {};  // under way; empty: in the user's code
  bool collective = false;     // whether it is one that all processes take part in
  double since = 0;            // how long the operation, or the user's code, has gone on

  // The names of the last collectives, the newest last, which has the number `number`.
  std::vector<std::string> recent = {};
  // Whether the numbers can be compared with those of other processes. Not if several threads call
  // collectives, or if an exception left an exchange, perhaps before it had reached the others.
  bool ordered = true;

  double busy = 0;         // mean time of the last steps without waits
  int64_t busy_steps = 0;  // how many steps that is
};

// Thread-safe.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // An operation, which ends with its scope. One that does not count does nothing.
  class [[nodiscard]] Operation {
   public:
    ~Operation();
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    friend class Progress;
    Operation(Progress* progress, int64_t token);
    Progress* progress_;  // null: does not count
    int64_t token_;
    int exceptions_;
  };

  void begin_step();

  // How long a step took this process, without waiting for others.
  void note_step(double busy_seconds);

  // An exchange in which every process takes part, in the same order and under the same name, which
  // must be a literal. Two of them with the same number but different names can never meet. One
  // inside another is part of it. One thread must call all of them, that of the training: the one
  // that calls the first.
  Operation collective(const char* name);

  // The same in another thread, for which that of the training waits: autograd's, in a backward.
  Operation collective_for_training(const char* name);

  // Any other wait: for one process, or in no common order. Counts only in the thread of the
  // training, since waits of other threads do not hold it up, and not inside another operation.
  Operation wait(const char* name);

  // From here on processes make different exchanges on purpose (uneven inputs).
  void lose_order();

  int64_t step() const;

  // Seconds spent in operations that have ended.
  double waited() const;

  ProgressSnapshot snapshot() const;

 private:
  static constexpr int64_t recent_count = 16;
  static constexpr int64_t busy_count = 50;

  Operation begin(const char* name, bool collective, bool for_training = false);
  void end(int64_t token, bool by_exception);

  mutable std::mutex mutex_;
  int64_t step_ = 0;
  int64_t number_ = 0;
  const char* operation_ = nullptr;
  bool collective_ = false;
  bool ordered_ = true;
  Clock::time_point changed_ = Clock::now();
  int64_t token_ = 0;            // of the operation under way
  std::thread::id thread_ = {};  // of the training
  Clock::duration waited_ = {};
  std::array<const char*, recent_count> recent_ = {};
  std::array<double, busy_count> busy_ = {};
  int64_t busy_steps_ = 0;
};

}  // namespace accelerant::dist
