#include "dist/store_courier.h"

#include <c10/util/Exception.h>

#include <stdexcept>
#include <thread>

#include "accelerant/core/detail/own_process.h"

namespace accelerant::dist {

std::shared_ptr<StoreCourier> StoreCourier::start(c10::intrusive_ptr<c10d::Store> store) {
  std::shared_ptr<StoreCourier> courier(new StoreCourier(std::move(store)),
                                        accelerant::detail::DeleteInOwnProcess());
  std::thread([courier] { courier->run(); }).detach();
  return courier;
}

void StoreCourier::carry_out(Work work, Clock::time_point deadline) {
  const auto job = std::make_shared<Job>(Job{.work = std::move(work)});
  std::unique_lock lock(mutex_);
  if (is_stopping_) throw Stopped{};
  jobs_.push_back(job);
  changed_.notify_all();
  const bool is_over =
      changed_.wait_until(lock, deadline, [&] { return job->is_done || is_stopping_; });
  if (is_stopping_) throw Stopped{};
  if (!is_over) throw NoAnswer{};
  if (job->error) std::rethrow_exception(job->error);
}

void StoreCourier::pause_until(Clock::time_point time) {
  std::unique_lock lock(mutex_);
  if (changed_.wait_until(lock, time, [&] { return is_stopping_; })) throw Stopped{};
}

void StoreCourier::stop(Work last) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_stopping_, true)) return;
  jobs_.push_back(std::make_shared<Job>(Job{.work = std::move(last)}));
  changed_.notify_all();
}

void StoreCourier::join(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return has_ended_; });
}

std::exception_ptr StoreCourier::error_of(const Work& work) {
  try {
    // A lost connection stays lost, and c10d would print a stack trace for every call.
    if (!lost_.empty()) throw std::runtime_error(lost_);
    work(*store_);
  } catch (const c10::DistNetworkError& error) {
    lost_ = error.what();
    return std::current_exception();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void StoreCourier::run() {
  std::unique_lock lock(mutex_);
  while (!is_stopping_ || !jobs_.empty()) {
    changed_.wait(lock, [&] { return is_stopping_ || !jobs_.empty(); });
    const auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    const std::exception_ptr error = error_of(job->work);
    lock.lock();
    job->error = error;
    job->is_done = true;
    changed_.notify_all();
  }
  has_ended_ = true;
  changed_.notify_all();
}

}  // namespace accelerant::dist
