// Makes items ahead of time in worker threads and returns them in order. Does not depend on data
// sets or torch; the loader is built on it.
//
// `claim` decides what comes next and returns a job that makes it, or an empty job at the end. It
// is called in order and never concurrently, so it may read from a stream; the jobs run in
// parallel. Without workers, next() runs both on the caller's thread.
//
// next() throws exceptions of claim and of jobs in place of the item. The destructor stops the
// workers and waits for running jobs.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace accelerant::data::detail {

template <class Item>
class OrderedPipeline {
 public:
  using Job = std::function<Item()>;
  using Claim = std::function<Job()>;

  // `capacity`: maximum number of items that are claimed but not yet taken. Every worker first
  // calls `on_thread_start`.
  OrderedPipeline(Claim claim, int64_t workers, int64_t capacity,
                  const std::function<void()>& on_thread_start = {})
      : claim_(std::move(claim)), capacity_(static_cast<std::size_t>(capacity)) {
    try {
      for (int64_t i = 0; i < workers; ++i) {
        threads_.emplace_back([this, on_thread_start] {
          if (on_thread_start) on_thread_start();
          work();
        });
      }
    } catch (...) {  // no more threads available: join those that run
      stop();
      throw;
    }
  }

  OrderedPipeline(const OrderedPipeline&) = delete;
  OrderedPipeline& operator=(const OrderedPipeline&) = delete;
  ~OrderedPipeline() { stop(); }

  // The next item; nullopt at the end. Waits for it.
  std::optional<Item> next() {
    if (threads_.empty()) {
      Job job = claim_();
      if (!job) return std::nullopt;
      return job();
    }
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return slots_.empty() ? ended_ : slots_.front().done; });
    if (slots_.empty()) return std::nullopt;
    Slot slot = std::move(slots_.front());
    slots_.pop_front();
    lock.unlock();
    room_.notify_one();
    if (slot.error) std::rethrow_exception(slot.error);
    return std::move(slot.item);
  }

 private:
  struct Slot {
    bool done = false;
    std::optional<Item> item = {};
    std::exception_ptr error = {};
  };

  void work() {
    for (;;) {
      Job job;
      Slot* slot = nullptr;
      {
        // Held while waiting for space, too: the first worker in line claims first.
        const std::lock_guard turn(claiming_);
        {
          std::unique_lock lock(mutex_);
          room_.wait(lock, [&] { return stopping_ || ended_ || slots_.size() < capacity_; });
          if (stopping_ || ended_) return;
        }
        std::exception_ptr error;
        try {
          job = claim_();
        } catch (...) {
          error = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        if (!job) {
          if (error) slots_.push_back(Slot{.done = true, .error = std::move(error)});
          ended_ = true;
          ready_.notify_one();
          return;
        }
        slot = &slots_.emplace_back();  // stays valid: a deque does not move its elements
      }
      std::optional<Item> item;
      std::exception_ptr error;
      try {
        item.emplace(job());
      } catch (...) {
        error = std::current_exception();
      }
      const std::lock_guard lock(mutex_);
      slot->item = std::move(item);
      slot->error = std::move(error);  // the only reference, so that the catcher destroys it
      slot->done = true;
      ready_.notify_one();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  Claim claim_;
  const std::size_t capacity_;

  std::mutex claiming_;
  std::mutex mutex_;               // guards the members below
  std::condition_variable ready_;  // the first slot is done, or the end is reached
  std::condition_variable room_;   // an item was taken, or the workers must stop
  std::deque<Slot> slots_;         // in the order of claims
  bool ended_ = false;
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace accelerant::data::detail
