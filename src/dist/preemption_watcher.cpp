#include "dist/preemption_watcher.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <thread>
#include <utility>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/failpoint.h"

namespace accelerant::dist {
namespace {

using std::chrono::milliseconds;

constexpr const char* kRequest = "request";
constexpr const char* kCount = "answers";
constexpr const char* kAgreement = "agreement";
constexpr const char* kLeft = "left";
// While training may be waiting.
constexpr milliseconds kQuickInterval = milliseconds(10);

std::string answer_key(int64_t rank) { return "answer/" + std::to_string(rank); }

std::string text_of(c10d::Store& store, const std::string& key) {
  const std::vector<uint8_t> value = store.get(key);
  return {value.begin(), value.end()};
}

}  // namespace

PreemptionWatcher::PreemptionWatcher(c10::intrusive_ptr<c10d::Store> store, int64_t rank,
                                     int64_t size, std::function<int()> local_signal,
                                     milliseconds interval)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      local_signal_(std::move(local_signal)),
      interval_(interval) {}

std::shared_ptr<PreemptionWatcher> PreemptionWatcher::start(c10::intrusive_ptr<c10d::Store> store,
                                                            int64_t rank, int64_t size,
                                                            std::function<int()> local_signal,
                                                            milliseconds interval) {
  auto watcher = accelerant::detail::make_shared_for_process<PreemptionWatcher>(
      std::move(store), rank, size, std::move(local_signal), interval);
  std::thread([watcher] { watcher->run(); }).detach();
  return watcher;
}

// --- The training --------------------------------------------------------------------------------

Boundary PreemptionWatcher::boundary_locked() const {
  if (!agreement_) return is_frozen_ ? Boundary::wait : Boundary::go_on;
  if (agreement_->update == 0) return Boundary::too_late;
  return updates_ >= agreement_->update ? Boundary::save : Boundary::go_on;
}

Boundary PreemptionWatcher::count_update() {
  const std::lock_guard lock(mutex_);
  ++updates_;
  if (!is_frozen_ && local_signal_() != 0) {
    if (!failure_.empty()) return Boundary::wait;  // never ends: the store is gone
    hurries_ = true;
    changed_.notify_all();
  }
  return boundary_locked();
}

Boundary PreemptionWatcher::boundary() const {
  const std::lock_guard lock(mutex_);
  return boundary_locked();
}

bool PreemptionWatcher::await_agreement(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return agreement_ || !failure_.empty(); });
}

std::optional<PreemptionAgreement> PreemptionWatcher::agreement() const {
  const std::lock_guard lock(mutex_);
  return agreement_;
}

std::string PreemptionWatcher::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<std::vector<int64_t>> PreemptionWatcher::missing(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  missing_.reset();
  wants_missing_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, timeout, [&] { return missing_ || ended_; });
  return missing_;
}

void PreemptionWatcher::stop(milliseconds timeout) {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
  changed_.wait_for(lock, timeout, [&] { return ended_; });
}

// --- The thread ----------------------------------------------------------------------------------

void PreemptionWatcher::run() {
  std::unique_lock lock(mutex_);
  while (!agreement_ && failure_.empty()) {
    changed_.wait_for(lock, is_frozen_ ? kQuickInterval : interval_,
                      [&] { return stopping_ || hurries_ || wants_missing_; });
    hurries_ = false;
    const bool leaves = stopping_;
    const bool wants_missing = std::exchange(wants_missing_, false);
    lock.unlock();
    std::string failure;
    std::optional<std::vector<int64_t>> missing;
    try {
      if (!leaves) look();
      if (leaves && !has_answered_) answer(kLeft);
      if (wants_missing) missing = find_missing();
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    failure_ = std::move(failure);
    if (missing) missing_ = std::move(missing);
    changed_.notify_all();
    if (leaves) break;
  }
  ended_ = true;
  changed_.notify_all();
}

void PreemptionWatcher::look() {
  if (!is_requested_) {
    if (const int signal = local_signal_()) {
      store_->set(kRequest, std::to_string(signal) + " " + std::to_string(rank_));
      is_requested_ = true;
    } else {
      is_requested_ = store_->check({kRequest});
    }
    if (!is_requested_) return;
  }
  if (!has_answered_) {
    int64_t updates = 0;
    {
      // Together: no boundary may be passed between the two.
      const std::lock_guard lock(mutex_);
      is_frozen_ = true;
      updates = updates_;
    }
    failpoint("preemption.answer");
    answer(std::to_string(updates));
  }
  if (!store_->check({kAgreement})) return;
  std::istringstream text(text_of(*store_, kAgreement));
  PreemptionAgreement agreement;
  text >> agreement.update >> agreement.signal >> agreement.rank;
  const std::lock_guard lock(mutex_);
  agreement_ = agreement;
}

void PreemptionWatcher::answer(const std::string& text) {
  has_answered_ = true;
  store_->set(answer_key(rank_), text);
  // The last process finds the answers of all others: they are written before they are counted.
  if (store_->add(kCount, 1) == size_) decide();
}

void PreemptionWatcher::decide() {
  if (!store_->check({kRequest})) return;  // all have left
  int64_t update = 1;
  for (int64_t rank = 0; rank < size_; ++rank) {
    const std::string text = text_of(*store_, answer_key(rank));
    if (text == kLeft) {
      update = 0;
      break;
    }
    update = std::max<int64_t>(update, std::stoll(text) + 1);
  }
  store_->set(kAgreement, std::to_string(update) + " " + text_of(*store_, kRequest));
}

std::vector<int64_t> PreemptionWatcher::find_missing() {
  std::vector<int64_t> ranks;
  for (int64_t rank = 0; rank < size_; ++rank) {
    if (!store_->check({answer_key(rank)})) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace accelerant::dist
