#include "store/parallel_reads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>

namespace accelerant::checkpoint {
namespace {

// Large enough to hide the cost of a call; numerous enough that threads finish at the same time.
constexpr std::size_t kLeastPiece = 2 << 20;
constexpr std::size_t kMostPiece = 8 << 20;

// A thread takes about 30 us to start, in which one core copies about 300 kB.
constexpr std::size_t kLeastPerThread = 2 << 20;

std::size_t bytes_of(const std::vector<TensorRead>& reads) {
  std::size_t bytes = 0;
  for (const TensorRead& read : reads) bytes += read.target.size();
  return bytes;
}

std::size_t piece_size(const std::vector<TensorRead>& reads, int threads) {
  const std::size_t share = bytes_of(reads) / static_cast<std::size_t>(threads);
  return std::clamp(share / 2 / kLeastPiece * kLeastPiece, kLeastPiece, kMostPiece);
}

bool have_overlap(const std::vector<TensorRead>& reads) {
  std::vector<std::span<std::byte>> targets;
  for (const TensorRead& read : reads) {
    if (!read.target.empty()) targets.push_back(read.target);
  }
  std::ranges::sort(targets, {}, [](const auto& target) { return target.data(); });
  const auto reaches = [](const auto& left, const auto& right) {
    return left.data() + left.size() > right.data();
  };
  return std::ranges::adjacent_find(targets, reaches) != targets.end();
}

int useful_threads(const std::vector<TensorRead>& reads, int most) {
  const std::size_t useful =
      std::min(static_cast<std::size_t>(std::max(most, 1)), bytes_of(reads) / kLeastPerThread);
  return std::max(static_cast<int>(useful), 1);
}

// By file, so that tensors that share a block of a file with checksums are read together.
std::vector<std::vector<TensorRead>> by_file(const std::vector<TensorRead>& reads) {
  std::vector<std::vector<TensorRead>> groups;
  std::unordered_map<const WeightFile*, std::size_t> group_of;
  for (const TensorRead& read : reads) {
    const auto [found, is_new] = group_of.try_emplace(read.file, groups.size());
    if (is_new) groups.emplace_back();
    groups[found->second].push_back(read);
  }
  return groups;
}

// Hands out the tasks one by one, so a slow thread does not delay the others.
class Crew {
 public:
  Crew(std::size_t count, const std::function<void(std::size_t)>& f) : count_(count), f_(f) {}

  void work() {
    try {
      for (std::size_t i = next_++; i < count_; i = next_++) f_(i);
    } catch (...) {
      next_ = count_;
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const std::size_t count_;
  const std::function<void(std::size_t)>& f_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

void run_in_parallel(std::size_t count, int threads, const std::function<void(std::size_t)>& f) {
  Crew crew(count, f);
  {
    std::vector<std::jthread> others;
    try {
      for (std::size_t i = 1; i < count && others.size() + 1 < static_cast<std::size_t>(threads);
           ++i) {
        others.emplace_back([&crew] { crew.work(); });
      }
    } catch (const std::system_error&) {
      // Continue with the threads that could be started.
    }
    crew.work();
  }
  crew.rethrow();
}

void read_all(const std::vector<TensorRead>& reads, int threads) {
  std::vector<std::function<void()>> tasks;
  if (have_overlap(reads)) {
    for (const TensorRead& read : reads) read.file->plan({read}, kMostPiece, tasks);
    for (const auto& task : tasks) task();
    return;
  }
  const int all = useful_threads(reads, threads);
  for (const auto& group : by_file(reads)) {
    group.front().file->plan(group, piece_size(reads, all), tasks);
  }
  run_in_parallel(tasks.size(), all, [&](std::size_t i) { tasks[i](); });
}

}  // namespace accelerant::checkpoint
