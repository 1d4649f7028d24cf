// What this process is doing now, for the monitor and for messages: the step, and the exchange with
// other processes it is in. Begin and end of an exchange cost some 100 ns.
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

  // The last collectives begun, the newest last: that is number `number`.
  std::vector<std::string> recent = {};
  // Whether the numbers can be compared with those of other processes. Not if several threads make
  // collectives, or if an exchange was left by an exception, perhaps before it had reached the
  // others.
  bool ordered = true;

  double busy = 0;         // mean of the last steps
  int64_t busy_steps = 0;  // how many those are
};

// Thread-safe.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // An operation under way; ends with its scope. One that does not count does nothing.
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

  // What a step has cost this process without waiting for others.
  void note_step(double busy_seconds);

  // An exchange that every process takes part in, in the same order and under the same name, which
  // must be a literal. Two of them with the same number but different names can never meet. Those
  // inside another are part of it. All must be made by one thread, that of the training; it is the
  // one that makes the first.
  Operation collective(const char* name);

  // The same in another thread, that the one of the training waits for: of autograd, in a backward.
  Operation collective_for_training(const char* name);

  // Any other wait: for one process, or in an order of its own. Counts only in the thread of the
  // training, as what threads beside it wait for does not hold it up; and not inside another
  // operation.
  Operation wait(const char* name);

  // From here on processes make different exchanges, and that is right (uneven inputs).
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
