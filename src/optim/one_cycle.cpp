#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "accelerant/optim/lr_schedule.h"
#include "optim/option_checks.h"

namespace accelerant::optim {
namespace {

using detail::refuse_option;

// The phase of the cycle that a step is in, and the progress within it.
struct Position {
  std::size_t phase;
  double progress;  // 0 to 1
};

// Phases end at fractions of steps, and the first may end before step 0: that is PyTorch's rule.
Position position_of(const OneCycle& cycle, int64_t step) {
  const auto total = static_cast<double>(cycle.total_steps);
  const double last = total - 1;
  const double rise = cycle.pct_start * total - 1;
  const std::array<double, 3> ends = {
      rise, cycle.three_phase ? 2 * cycle.pct_start * total - 2 : last, last};
  const std::size_t phases = cycle.three_phase ? 3 : 2;
  const double at = std::min(static_cast<double>(step), last);
  double begin = 0;
  std::size_t phase = 0;
  while (phase + 1 < phases && at > ends[phase]) begin = ends[phase++];
  // A first phase of length 0 is over at once; PyTorch divides by zero there.
  const double length = ends[phase] - begin;
  return {phase, length > 0 ? (at - begin) / length : 1.0};
}

double annealed(OneCycle::Anneal anneal, double from, double to, double progress) {
  if (anneal == OneCycle::Anneal::linear) return (to - from) * progress + from;
  return to + (from - to) / 2.0 * (std::cos(std::numbers::pi * progress) + 1);
}

void check_momentum(const char* option, const PerGroup& momentum) {
  if (momentum.empty()) refuse_option("OneCycle", option, "a number, or one per group", "nothing");
  for (const double value : momentum.values()) {
    if (!(value >= 0 && value < 1)) {
      refuse_option("OneCycle", option, "at least 0 and less than 1", c10::str(value));
    }
  }
}

}  // namespace

double OneCycle::rate(double base_lr, int64_t step, std::size_t group) const {
  const double highest = max_lr.empty() ? base_lr : max_lr.of(group);
  const double first = highest / div_factor;
  const std::array<double, 4> levels = {
      first, highest, three_phase ? first : first / final_div_factor, first / final_div_factor};
  const Position position = position_of(*this, step);
  return annealed(anneal, levels[position.phase], levels[position.phase + 1], position.progress);
}

std::optional<double> OneCycle::momentum(int64_t step, std::size_t group) const {
  if (!cycle_momentum) return std::nullopt;
  const double low = base_momentum.of(group);
  const double high = max_momentum.of(group);
  const std::array<double, 4> levels = {high, low, high, high};
  const Position position = position_of(*this, step);
  return annealed(anneal, levels[position.phase], levels[position.phase + 1], position.progress);
}

void OneCycle::validate() const {
  for (const double value : max_lr.values()) detail::require_positive("OneCycle", "max_lr", value);
  detail::require_at_least("OneCycle", "total_steps", total_steps, 1,
                           "set it to the number of optimizer updates of the whole run");
  detail::require_part_of_one("OneCycle", "pct_start", pct_start);
  detail::require_positive("OneCycle", "div_factor", div_factor);
  detail::require_positive("OneCycle", "final_div_factor", final_div_factor);
  if (!cycle_momentum) return;
  check_momentum("base_momentum", base_momentum);
  check_momentum("max_momentum", max_momentum);
}

void OneCycle::check_groups(const std::vector<double>& base_lrs) const {
  max_lr.check_size(base_lrs.size(), "OneCycle: max_lr");
  if (!cycle_momentum) return;
  base_momentum.check_size(base_lrs.size(), "OneCycle: base_momentum");
  max_momentum.check_size(base_lrs.size(), "OneCycle: max_momentum");
}

}  // namespace accelerant::optim
