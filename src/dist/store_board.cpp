#include "dist/store_board.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "accelerant/core/detail/own_process.h"

namespace accelerant::dist {
namespace {

using std::chrono::milliseconds;

// The only object that talks to the store. It runs in its own thread, since a call on a store whose
// process is stopped never returns; it owns everything it needs, so that such a thread can be
// abandoned.
class Courier {
 public:
  Courier(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size)
      : store_(std::move(store)), rank_(rank), known_(static_cast<size_t>(size)) {}

  void write(const std::string& text) {
    const std::lock_guard lock(mutex_);
    to_write_ = text;
    changed_.notify_all();
  }

  bool flush(milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return !to_write_ && !busy_; });
  }

  std::optional<std::vector<std::string>> read(milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (answered_ == asked_) ++asked_;  // otherwise an earlier question is still unanswered
    const int64_t wanted = asked_;
    changed_.notify_all();
    if (!changed_.wait_for(lock, timeout, [&] { return answered_ >= wanted; })) return std::nullopt;
    return texts_;
  }

  std::string last_error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }

  std::optional<std::chrono::steady_clock::time_point> last_answer() const {
    const std::lock_guard lock(mutex_);
    return last_answer_;
  }

  // Waits for the thread to end, but not forever.
  void stop(milliseconds timeout) {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, timeout, [&] { return ended_; });
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || to_write_ || answered_ < asked_; });
      const auto text = std::exchange(to_write_, std::nullopt);
      const int64_t question = asked_;
      const bool reads = answered_ < question;
      if (!text && !reads) break;
      busy_ = true;
      lock.unlock();
      std::optional<std::vector<std::string>> texts;
      std::string error;
      try {
        // A lost connection stays lost, and c10d would print a stack trace for every call.
        if (is_broken_) throw std::runtime_error("the connection to the store is lost");
        if (text) store_->set(heartbeat_key(rank_), *text);
        if (reads) texts = read_all();
      } catch (const c10::DistNetworkError& failure) {
        error = failure.what();
        is_broken_ = true;
      } catch (const std::exception& failure) {
        error = failure.what();
      }
      lock.lock();
      busy_ = false;
      error_ = error;
      if (error.empty()) last_answer_ = std::chrono::steady_clock::now();
      if (reads) {
        texts_ = std::move(texts);
        answered_ = question;
      }
      changed_.notify_all();
    }
    ended_ = true;
    changed_.notify_all();
  }

 private:
  // Never reads a missing key: that would wait for it.
  std::vector<std::string> read_all() {
    std::vector<std::string> keys;
    for (size_t rank = 0; rank < known_.size(); ++rank) {
      const std::string key = heartbeat_key(static_cast<int64_t>(rank));
      if (!known_[rank]) known_[rank] = store_->check({key});
      if (known_[rank]) keys.push_back(key);
    }
    std::vector<std::vector<uint8_t>> values;
    if (store_->hasExtendedApi()) {
      if (!keys.empty()) values = store_->multiGet(keys);
    } else {
      for (const std::string& key : keys) values.push_back(store_->get(key));
    }
    std::vector<std::string> texts(known_.size());
    size_t next = 0;
    for (size_t rank = 0; rank < known_.size(); ++rank) {
      if (!known_[rank]) continue;
      const auto& value = values.at(next++);
      texts[rank].assign(value.begin(), value.end());
    }
    return texts;
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const int64_t rank_;
  // Used by run() only.
  std::vector<bool> known_;
  bool is_broken_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::string> to_write_;
  int64_t asked_ = 0;
  int64_t answered_ = 0;
  std::optional<std::vector<std::string>> texts_;
  std::optional<std::chrono::steady_clock::time_point> last_answer_;
  std::string error_;
  bool busy_ = false;
  bool stopping_ = false;
  bool ended_ = false;
};

class StoreBoard : public Board {
 public:
  explicit StoreBoard(std::shared_ptr<Courier> courier) : courier_(std::move(courier)) {
    std::thread([courier = courier_] { courier->run(); }).detach();
  }

  ~StoreBoard() override {
    if (process_.is_this_one()) courier_->stop(milliseconds(100));
  }

  void write(const std::string& text) override { courier_->write(text); }
  bool flush(milliseconds timeout) override { return courier_->flush(timeout); }
  std::optional<std::vector<std::string>> read(milliseconds timeout) override {
    return courier_->read(timeout);
  }
  std::optional<std::chrono::steady_clock::time_point> last_answer() const override {
    return courier_->last_answer();
  }
  std::string last_error() const override { return courier_->last_error(); }

 private:
  std::shared_ptr<Courier> courier_;
  const accelerant::detail::OwnProcess process_;
};

}  // namespace

std::string heartbeat_key(int64_t rank) { return c10::str("heartbeat/", rank); }

std::unique_ptr<Board> make_store_board(c10d::Store& store, int64_t rank, int64_t size) {
  return std::make_unique<StoreBoard>(
      accelerant::detail::make_shared_for_process<Courier>(store.clone(), rank, size));
}

}  // namespace accelerant::dist
