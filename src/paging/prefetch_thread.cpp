#include "paging/prefetch_thread.h"

#include <utility>

#include "compat/device.h"

namespace accelerant::paging {

PrefetchThread::PrefetchThread(std::function<void(std::size_t)> fetch)
    : fetch_(std::move(fetch)), thread_([this] { run(); }) {}

PrefetchThread::~PrefetchThread() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void PrefetchThread::want(const std::vector<std::size_t>& units) {
  {
    const std::lock_guard lock(mutex_);
    wanted_.assign(units.begin(), units.end());
  }
  work_.notify_one();
}

void PrefetchThread::cancel() {
  std::unique_lock lock(mutex_);
  wanted_.clear();
  rest_.wait(lock, [this] { return !is_fetching_; });
}

void PrefetchThread::run() {
  compat::use_one_intra_op_thread();  // the others compute
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stops_ || !wanted_.empty(); });
    if (stops_) return;
    const std::size_t unit = wanted_.front();
    wanted_.pop_front();
    is_fetching_ = true;
    lock.unlock();
    fetch_(unit);
    lock.lock();
    is_fetching_ = false;
    rest_.notify_all();
  }
}

}  // namespace accelerant::paging
