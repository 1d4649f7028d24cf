#include "paging/schedule.h"

#include <algorithm>

namespace accelerant::paging {
namespace {

// How far an iteration may skip ahead in the recorded order and still count as following it, as
// two threads that use a model at once do.
constexpr std::size_t lookahead = 32;

// Longer orders are not recorded: a step that alternates between two units for hours.
constexpr std::size_t longest_order = 1 << 20;

}  // namespace

void Schedule::begin(std::string_view phase) {
  phase_ = phase;
  recording_.clear();
  const auto known = orders_.find(phase);
  order_ = known == orders_.end() || known->second.empty() ? nullptr : &known->second;
  position_ = 0;
  last_ = before_last_ = none;  // so that the first use counts, whichever unit was last
}

void Schedule::end() {
  if (!phase_) return;
  orders_[*phase_] = std::move(recording_);
  recording_ = {};
  phase_.reset();
  order_ = nullptr;
}

void Schedule::advance(std::size_t unit) {
  if (before_last_ != none) successors_[pair(before_last_, last_)] = unit;
  before_last_ = last_;
  last_ = unit;
  if (!phase_) return;
  if (recording_.size() < longest_order) recording_.push_back(unit);
  if (order_ != nullptr) follow(unit);
}

void Schedule::follow(std::size_t unit) {
  const auto from = order_->begin() + static_cast<std::ptrdiff_t>(position_);
  const auto until = order_->end() - from > static_cast<std::ptrdiff_t>(lookahead)
                         ? from + static_cast<std::ptrdiff_t>(lookahead)
                         : order_->end();
  const auto found = std::find(from, until, unit);
  if (found == until) {
    order_ = nullptr;  // another order than last time
  } else {
    position_ = static_cast<std::size_t>(found - order_->begin()) + 1;
  }
}

std::vector<std::size_t> Schedule::upcoming(std::size_t most) const {
  std::vector<std::size_t> units;
  std::vector<bool> is_known;  // by unit
  const auto add = [&](std::size_t unit) {
    if (unit >= is_known.size()) is_known.resize(unit + 1);
    if (is_known[unit]) return;
    is_known[unit] = true;
    units.push_back(unit);
  };
  if (order_ != nullptr) {
    // The next iteration follows this one. Few units in a long order: they alternate.
    const std::size_t steps = std::min(order_->size(), 16 * most);
    for (std::size_t i = 0; i < steps && units.size() < most; ++i) {
      add((*order_)[(position_ + i) % order_->size()]);
    }
    return units;
  }
  std::size_t first = before_last_;
  std::size_t second = last_;
  for (std::size_t i = 0; i < 4 * most && units.size() < most; ++i) {
    const auto next = successors_.find(pair(first, second));
    if (first == none || next == successors_.end()) break;
    add(next->second);
    first = second;
    second = next->second;
  }
  return units;
}

}  // namespace accelerant::paging
