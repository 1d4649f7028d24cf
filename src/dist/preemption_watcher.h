// How processes that are asked to save and stop agree on when, without an exchange in each step.
//
// Signals reach processes at different times, or only one of them; all must save after the same
// update. Each process has a thread with a connection of its own to the store, which looks every
// quarter of a second whether somebody asks:
//
//   1. A process that has received a signal writes "request".
//   2. A thread that sees it writes how many updates its process has passed. From then on the process stops at
//      its next boundary, so it is at most one update further.
//   3. The last to answer writes "agreement": the largest of the answers plus one. Those that have stopped go
//      on, so also those reach that update who wait for them in an exchange.
//
// Answers come from the threads, whatever the trainings are busy with. A process whose training has
// ended answers that it has left; then nobody saves, since not all can.
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
  int64_t update = 0;  // after which all save; 0: nobody does, since a process has left
  int signal = 0;      // that asked for it
  int64_t rank = 0;    // which process received it
};

// What a training does after an update.
enum class Boundary {
  go_on,
  wait,     // for the agreement
  save,     // and stop
  too_late  // go on: there was a request, but a process has left
};

// Thread-safe. The thread of run() may outlive all others: a call on a store whose process is
// stopped does not come back.
class PreemptionWatcher {
 public:
  // `store` is used by run() only. `local_signal` returns the signal that this process has
  // received, 0 for none; it must be callable for ever.
  PreemptionWatcher(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size,
                    std::function<int()> local_signal, std::chrono::milliseconds interval);

  // Starts the thread that owns the watcher, together with the caller.
  static std::shared_ptr<PreemptionWatcher> start(c10::intrusive_ptr<c10d::Store> store,
                                                  int64_t rank, int64_t size,
                                                  std::function<int()> local_signal,
                                                  std::chrono::milliseconds interval);

  // --- For the training ---

  // One more update is done.
  Boundary count_update();

  // False: nothing was agreed in this time. True without an agreement: there will be none, see
  // failure().
  bool await_agreement(std::chrono::milliseconds timeout);

  // What to do now, without a further update.
  Boundary boundary() const;

  std::optional<PreemptionAgreement> agreement() const;

  // Why the store is of no use any more; empty if it is.
  std::string failure() const;

  // The processes that have not answered. Nothing if the store does not tell in this time.
  std::optional<std::vector<int64_t>> missing(std::chrono::milliseconds timeout);

  // Tells the others that this process has left, unless it has answered. Waits for the end of the
  // thread, but no longer than this.
  void stop(std::chrono::milliseconds timeout);

 private:
  Boundary boundary_locked() const;
  void run();
  void look();
  void answer(const std::string& text);
  void decide();
  std::vector<int64_t> find_missing();

  // Of the thread only.
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
  bool is_frozen_ = false;  // the answer has been taken from updates_
  std::optional<PreemptionAgreement> agreement_;
  std::string failure_;
  bool hurries_ = false;  // look now
  bool wants_missing_ = false;
  std::optional<std::vector<int64_t>> missing_;
  bool stopping_ = false;
  bool ended_ = false;
};

}  // namespace accelerant::dist
