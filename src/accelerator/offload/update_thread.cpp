#include "accelerator/offload/update_thread.h"

#include <c10/util/thread_name.h>

#include <utility>

#include "compat/device.h"

namespace accelerant::detail {

UpdateThread::~UpdateThread() {
  {
    const std::scoped_lock lock(mutex_);
    must_end_ = true;
    jobs_.clear();
  }
  has_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void UpdateThread::begin(Update update) {
  {
    const std::scoped_lock lock(mutex_);
    update_ = std::move(update);
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void UpdateThread::add(at::Tensor parameter, std::optional<c10::Event> gradient_is_there) {
  {
    const std::scoped_lock lock(mutex_);
    jobs_.push_back({std::move(parameter), std::move(gradient_is_there)});
  }
  has_changed_.notify_all();
}

void UpdateThread::finish(const Update& use) {
  std::unique_lock lock(mutex_);
  while (true) {
    has_changed_.wait(lock, [&] { return !updated_.empty() || (jobs_.empty() && !is_busy_); });
    if (updated_.empty()) break;
    const at::Tensor parameter = std::move(updated_.front());
    updated_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      use(parameter);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure && !failure_) failure_ = failure;
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void UpdateThread::run() {
  c10::setThreadName("updates");
  compat::spare_intra_op_threads(2);  // for the loop's and for backward's, which drive the device
  std::unique_lock lock(mutex_);
  while (true) {
    has_changed_.wait(lock, [&] { return must_end_ || !jobs_.empty(); });
    if (must_end_) return;
    Job job = std::move(jobs_.front());
    jobs_.pop_front();
    is_busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    at::Tensor updated;
    try {
      if (job.gradient_is_there) job.gradient_is_there->synchronize();
      update_(job.parameter);
      updated = std::move(job.parameter);
    } catch (...) {
      failure = std::current_exception();
    }
    job = {};  // outside of the lock: it may free memory
    lock.lock();
    if (failure && !failure_) failure_ = failure;
    if (updated.defined()) updated_.push_back(std::move(updated));
    is_busy_ = false;
    has_changed_.notify_all();
  }
}

}  // namespace accelerant::detail
