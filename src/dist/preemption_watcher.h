// How processes that are asked to save and stop agree on when, without an exchange in each step.
//
// Signals reach processes at different times, or only one of them, but all must save after the same
// update. Each process has a thread with its own connection to the store, which checks every
// quarter of a second whether somebody asks:
//
// 1. A process that has received a signal writes "request".
// 2. A thread that sees it writes how many updates its process has passed. From then on the process
//    stops at its next boundary, so it gets at most one update further.
// 3. The last one to answer writes "agreement": the largest of the answers plus one. Processes that
//    have stopped continue, so that those waiting for them in an exchange also reach that update.
//
// The threads answer whatever training is busy with. A process that has finished training answers
// that it has left; then no process saves, since not all can.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace accelerant::dist {

struct PreemptionAgreement {
  int64_t update = 0;  // all save after this one; 0: none does, since a process has left
  int signal = 0;      // the signal that asked for it
  int64_t rank = 0;    // the process that received it
};

// What a training loop does after an update.
enum class Boundary {
  go_on,
  wait,     // for the agreement
  save,     // and stop
  too_late  // continue: there was a request, but a process has left
};

// Thread-safe. The thread of run() may outlive all others: a call on a store whose process is
// stopped never returns.
class PreemptionWatcher {
 public:
  // Only run() uses `store`. `local_signal` returns the signal that this process has received, or
  // 0; it must remain callable forever.
  PreemptionWatcher(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size,
                    std::function<int()> local_signal, std::chrono::milliseconds interval);

  // Starts the thread, which owns the watcher together with the caller.
  static std::shared_ptr<PreemptionWatcher> start(c10::intrusive_ptr<c10d::Store> store,
                                                  int64_t rank, int64_t size,
                                                  std::function<int()> local_signal,
                                                  std::chrono::milliseconds interval);

  // --- For the training --------------------------------------------------------------------------

  // Call it after each update.
  Boundary count_update();

  // Returns false if nothing was agreed in this time. True without an agreement means there will be
  // none; see failure().
  bool await_agreement(std::chrono::milliseconds timeout);

  // What to do now, without a further update.
  Boundary boundary() const;

  std::optional<PreemptionAgreement> agreement() const;

  // Why the store is no longer usable; empty if it is.
  std::string failure() const;

  // The processes that have not answered. Empty if the store does not answer in this time.
  std::optional<std::vector<int64_t>> missing(std::chrono::milliseconds timeout);

  // Tells the others that this process has left, unless it has answered. Waits for the thread to
  // end, but no longer than `timeout`.
  void stop(std::chrono::milliseconds timeout);

 private:
  Boundary boundary_locked() const;
  void run();
  void look();
  void answer(const std::string& text);
  void decide();
  std::vector<int64_t> find_missing();

  // Used by the thread only.
  const c10::intrusive_ptr<c10d::Store> store_;
  const int64_t rank_;
  const int64_t size_;
  const std::function<int()> local_signal_;
  const std::chrono::milliseconds interval_;
  bool is_requested_ = false;
  bool has_answered_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t updates_ = 0;
  bool is_frozen_ = false;  // updates_ has been used as the answer
  std::optional<PreemptionAgreement> agreement_;
  std::string failure_;
  bool hurries_ = false;  // check now
  bool wants_missing_ = false;
  std::optional<std::vector<int64_t>> missing_;
  bool stopping_ = false;
  bool ended_ = false;
};

}  // namespace accelerant::dist
