#include "watch/progress.h"

#include <algorithm>
#include <exception>

namespace accelerant::dist {

Progress::Operation::Operation(Progress* progress, int64_t token)
    : progress_(progress), token_(token), exceptions_(std::uncaught_exceptions()) {}

Progress::Operation::~Operation() {
  if (progress_ != nullptr) progress_->end(token_, std::uncaught_exceptions() > exceptions_);
}

void Progress::begin_step() {
  const std::lock_guard lock(mutex_);
  ++step_;
  if (operation_ == nullptr) changed_ = Clock::now();
}

void Progress::note_step(double busy_seconds) {
  const std::lock_guard lock(mutex_);
  busy_[static_cast<size_t>(busy_steps_++ % busy_count)] = busy_seconds;
}

Progress::Operation Progress::collective(const char* name) { return begin(name, true); }

Progress::Operation Progress::collective_for_training(const char* name) {
  return begin(name, true, /*for_training=*/true);
}

Progress::Operation Progress::wait(const char* name) { return begin(name, false); }

Progress::Operation Progress::begin(const char* name, bool collective, bool for_training) {
  const std::lock_guard lock(mutex_);
  const auto thread = std::this_thread::get_id();
  if (collective && !for_training && thread_ == std::thread::id()) thread_ = thread;
  const bool elsewhere = !for_training && thread_ != std::thread::id() && thread_ != thread;
  // Inside of another collective it is a part of that: of autograd's threads in a backward, say.
  if (collective && elsewhere && !collective_) ordered_ = false;
  // A collective counts also inside a wait: on other processes there may be none around it.
  const bool inside = operation_ != nullptr && (collective_ || !collective);
  if (elsewhere || inside) return Operation(nullptr, 0);
  const auto now = Clock::now();
  if (operation_ != nullptr) waited_ += now - changed_;  // in the wait that is around it
  operation_ = name;
  collective_ = collective;
  changed_ = now;
  if (collective) recent_[static_cast<size_t>(++number_ % recent_count)] = name;
  return Operation(this, ++token_);
}

void Progress::end(int64_t token, bool by_exception) {
  const std::lock_guard lock(mutex_);
  if (token != token_) return;  // a wait in which a collective was made since
  if (collective_ && by_exception) ordered_ = false;
  operation_ = nullptr;
  collective_ = false;
  const auto now = Clock::now();
  waited_ += now - changed_;
  changed_ = now;
}

double Progress::waited() const {
  const std::lock_guard lock(mutex_);
  return std::chrono::duration<double>(waited_).count();
}

void Progress::lose_order() {
  const std::lock_guard lock(mutex_);
  ordered_ = false;
}

int64_t Progress::step() const {
  const std::lock_guard lock(mutex_);
  return step_;
}

ProgressSnapshot Progress::snapshot() const {
  const std::lock_guard lock(mutex_);
  ProgressSnapshot snapshot{.step = step_,
                            .number = number_,
                            .operation = operation_ == nullptr ? "" : operation_,
                            .collective = collective_,
                            .since = std::chrono::duration<double>(Clock::now() - changed_).count(),
                            .ordered = ordered_,
                            .busy_steps = std::min(busy_steps_, busy_count)};
  for (int64_t n = std::max<int64_t>(1, number_ - recent_count + 1); n <= number_; ++n)
    snapshot.recent.emplace_back(recent_[static_cast<size_t>(n % recent_count)]);
  for (int64_t i = 0; i < snapshot.busy_steps; ++i)
    snapshot.busy += busy_[static_cast<size_t>(i)] / static_cast<double>(snapshot.busy_steps);
  return snapshot;
}

}  // namespace accelerant::dist
