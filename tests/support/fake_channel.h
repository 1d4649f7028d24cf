// A channel through which the loaders of several processes, simulated by threads, exchange batches.
#pragma once

#include <accelerant/data/detail/batch_channel.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

// What the simulated processes share.
class FakeNetwork {
 public:
  explicit FakeNetwork(int64_t num_processes) {
    for (int64_t rank = 0; rank < num_processes; ++rank) {
      channels_.push_back(std::make_shared<Channel>(*this, rank));
    }
  }

  // The endpoint of one process. The network must outlive it.
  std::shared_ptr<accelerant::data::BatchChannel> channel(int64_t rank) const {
    return channels_[static_cast<std::size_t>(rank)];
  }

  // Bytes sent to a process so far.
  int64_t bytes_to(int64_t rank) {
    const std::lock_guard lock(mutex_);
    return bytes_[rank];
  }
  // Messages sent and not yet received.
  int64_t under_way() {
    const std::lock_guard lock(mutex_);
    int64_t count = 0;
    for (const auto& [key, queue] : queues_) count += static_cast<int64_t>(queue.size());
    return count;
  }

 private:
  using Key = std::pair<int64_t, int64_t>;  // line and rank

  class Line : public accelerant::data::BatchLine {
   public:
    Line(FakeNetwork& network, int64_t line, int64_t rank)
        : network_(network), line_(line), rank_(rank) {}
    void send(int64_t rank, const at::Tensor& message) override {
      if (rank_ != 0 || rank == 0) throw std::logic_error("only rank 0 sends, and to others");
      const std::lock_guard lock(network_.mutex_);
      network_.queues_[{line_, rank}].push_back(message);
      network_.bytes_[rank] += message.numel();
      network_.changed_.notify_all();
    }
    void flush() override {}
    at::Tensor receive() override {
      std::unique_lock lock(network_.mutex_);
      auto& queue = network_.queues_[{line_, rank_}];
      if (!network_.changed_.wait_for(lock, std::chrono::seconds(60),
                                      [&] { return !queue.empty(); })) {
        throw std::runtime_error("no message came");
      }
      at::Tensor message = queue.front();
      queue.pop_front();
      return message;
    }

   private:
    FakeNetwork& network_;
    int64_t line_;
    int64_t rank_;
  };

  class Channel : public accelerant::data::BatchChannel {
   public:
    Channel(FakeNetwork& network, int64_t rank) : network_(network), rank_(rank) {}
    std::unique_ptr<accelerant::data::BatchLine> open(int64_t number) override {
      return std::make_unique<Line>(network_, number, rank_);
    }

   private:
    FakeNetwork& network_;
    int64_t rank_;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::deque<at::Tensor>> queues_;
  std::map<int64_t, int64_t> bytes_;
  std::vector<std::shared_ptr<Channel>> channels_;
};

// Runs f(rank) for every rank, each in a thread of its own. If one of them throws, rethrows its
// exception at the end.
template <class F>
void on_all_ranks(int64_t num_processes, F&& f) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(num_processes));
  {
    std::vector<std::jthread> threads;
    for (int64_t rank = 0; rank < num_processes; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          f(rank);
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}
