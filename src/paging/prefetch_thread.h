// Fetches units ahead of their use, for sources that block.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace accelerant::paging {

class PrefetchThread {
 public:
  // `fetch` must not throw.
  explicit PrefetchThread(std::function<void(std::size_t unit)> fetch);

  // Waits for the fetch in progress.
  ~PrefetchThread();
  PrefetchThread(const PrefetchThread&) = delete;
  PrefetchThread& operator=(const PrefetchThread&) = delete;

  // Replaces what was wanted before and has not begun.
  void want(const std::vector<std::size_t>& units);

  // Drops what is wanted, and waits for the fetch in progress.
  void cancel();

 private:
  void run();

  std::function<void(std::size_t)> fetch_;
  std::mutex mutex_;
  std::condition_variable work_, rest_;
  std::deque<std::size_t> wanted_;
  bool is_fetching_ = false;
  bool stops_ = false;
  std::thread thread_;  // last member, so that it finds the others
};

}  // namespace accelerant::paging
