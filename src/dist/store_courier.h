// A thread that talks to a c10d store for others.
//
// A call on a store whose process is stopped never returns and cannot be cancelled. So that callers
// can stop waiting for the answer, the thread owns everything it needs, and is abandoned if
// necessary.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace accelerant::dist {

class StoreCourier {
 public:
  using Clock = std::chrono::steady_clock;
  using Work = std::function<void(c10d::Store&)>;

  // Thrown by waiting calls, and by later ones.
  struct Stopped {};
  struct NoAnswer {};

  // Takes over the store, a clone that nobody else may use. The thread runs until stop().
  static std::shared_ptr<StoreCourier> start(c10::intrusive_ptr<c10d::Store> store);

  // What f(store) returns or throws. f may still run, or run later, when this throws Stopped or, at
  // the deadline, NoAnswer: it must own everything it uses.
  template <class F>
  auto ask(F f, Clock::time_point deadline) {
    using Answer = decltype(f(std::declval<c10d::Store&>()));
    const auto answer = std::make_shared<std::optional<Answer>>();
    carry_out([answer, f = std::move(f)](c10d::Store& store) { answer->emplace(f(store)); },
              deadline);
    return std::move(**answer);
  }

  // Waits until then. Throws Stopped.
  void pause_until(Clock::time_point time);

  // Ends the thread after this last work, whose errors are not reported. Returns at once. Only the
  // first call counts.
  void stop(Work last);

  // Waits for the thread to end, but not forever.
  void join(std::chrono::milliseconds timeout);

 private:
  struct Job {
    Work work;
    std::exception_ptr error = {};
    bool is_done = false;
  };

  explicit StoreCourier(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void carry_out(Work work, Clock::time_point deadline);
  void run();
  std::exception_ptr error_of(const Work& work);

  const c10::intrusive_ptr<c10d::Store> store_;
  std::string lost_;  // why the connection is lost; used by the thread only

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool is_stopping_ = false;
  bool has_ended_ = false;
};

}  // namespace accelerant::dist
