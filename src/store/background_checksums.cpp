#include "store/background_checksums.h"

#include <system_error>
#include <utility>

namespace accelerant::checkpoint {
namespace {

// Waking the thread for less would take longer than summing up at once.
constexpr std::size_t kWorthHandingOver = 512 << 10;

}  // namespace

BackgroundChecksums::~BackgroundChecksums() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BackgroundChecksums::begin(std::span<const std::byte> bytes) {
  if (bytes.size() < kWorthHandingOver || !has_thread()) return sums_.add(bytes);
  {
    const std::lock_guard lock(mutex_);
    task_ = bytes;
  }
  changed_.notify_all();
}

void BackgroundChecksums::end() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return task_.empty(); });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

bool BackgroundChecksums::has_thread() {
  if (thread_.joinable() || cannot_start_) return thread_.joinable();
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {
    cannot_start_ = true;
  }
  return !cannot_start_;
}

void BackgroundChecksums::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !task_.empty() || is_over_; });
    if (task_.empty()) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      sums_.add(task_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    task_ = {};
    changed_.notify_all();
  }
}

}  // namespace accelerant::checkpoint
