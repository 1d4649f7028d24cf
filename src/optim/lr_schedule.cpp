// Per-group options, and the schedules that are one formula. Operations are in the order of the
// Python originals, so that results agree to the last bits.
#include "accelerant/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "accelerant/core/log.h"
#include "core/texts.h"
#include "optim/option_checks.h"

namespace accelerant::optim {
namespace {

using detail::refuse_option;
using detail::require_at_least;
using detail::require_not_negative;
using detail::require_part_of_one;
using detail::require_positive;

constexpr double kPi = std::numbers::pi;

// How far `step` is between two steps; 1 from the second one on.
double progress_between(int64_t begin, int64_t end, int64_t step) {
  if (step >= end) return 1.0;
  return static_cast<double>(step - begin) / static_cast<double>(end - begin);
}

// The same after the warm-up. As in transformers, a run that is only warm-up stays at 0.
double progress_after(int64_t warmup_steps, int64_t total_steps, int64_t step) {
  const int64_t length = std::max(int64_t{1}, total_steps - warmup_steps);
  return static_cast<double>(step - warmup_steps) / static_cast<double>(length);
}

void check_warmup(const char* kind, int64_t warmup_steps) {
  require_at_least(kind, "warmup_steps", warmup_steps, 0);
}

void check_warmup_and_total(const char* kind, int64_t warmup_steps, int64_t total_steps) {
  check_warmup(kind, warmup_steps);
  require_at_least(kind, "total_steps", total_steps, 1,
                   "set it to the number of optimizer updates of the whole run");
  if (warmup_steps <= total_steps) return;
  log(LogLevel::warning,
      c10::str(kind, ": warmup_steps (", warmup_steps, ") is more than total_steps (", total_steps,
               "): the run ends before the base rate is reached"));
}

double half_cosine(double cycles, double progress) {
  return 0.5 * (1.0 + std::cos(kPi * cycles * 2.0 * progress));
}

double lifted(double factor, double min_lr_ratio) {
  return std::max(0.0, factor * (1.0 - min_lr_ratio) + min_lr_ratio);
}

}  // namespace

double PerGroup::of(std::size_t group) const {
  if (!is_list_) return values_.front();
  if (group < values_.size()) return values_[group];
  throw Error(ErrorDetails{.problem = "An option has no value for a param group",
                           .expected = c10::str("at least ", counted(group + 1, "value")),
                           .got = c10::str(values_.size())});
}

void PerGroup::check_size(std::size_t groups, const char* name) const {
  if (!is_list_ || empty() || values_.size() == groups) return;
  throw Error(
      ErrorDetails{.problem = c10::str(name, " does not match the optimizer's param groups"),
                   .expected = c10::str(groups, groups == 1 ? " value" : " values, one per group"),
                   .got = c10::str(values_.size()),
                   .hint = "a number without braces applies to all groups"});
}

double Constant::rate(double base_lr, int64_t) const { return base_lr; }

double ConstantWithWarmup::rate(double base_lr, int64_t step) const {
  return base_lr * progress_between(0, warmup_steps, step);
}

void ConstantWithWarmup::validate() const { check_warmup("ConstantWithWarmup", warmup_steps); }

double LinearWithWarmup::rate(double base_lr, int64_t step) const {
  if (step < warmup_steps) return base_lr * progress_between(0, warmup_steps, step);
  if (step >= total_steps) return 0.0;
  // Counted from the end: the same as one minus the progress, but exact where Python is exact.
  return base_lr * (static_cast<double>(total_steps - step) /
                    static_cast<double>(total_steps - warmup_steps));
}

void LinearWithWarmup::validate() const {
  check_warmup_and_total("LinearWithWarmup", warmup_steps, total_steps);
}

double CosineWithWarmup::rate(double base_lr, int64_t step) const {
  if (step < warmup_steps) return base_lr * progress_between(0, warmup_steps, step);
  const double progress = progress_after(warmup_steps, total_steps, step);
  return base_lr * lifted(half_cosine(cycles, progress), min_lr_ratio);
}

void CosineWithWarmup::validate() const {
  check_warmup_and_total("CosineWithWarmup", warmup_steps, total_steps);
  require_not_negative("CosineWithWarmup", "cycles", cycles);
  require_part_of_one("CosineWithWarmup", "min_lr_ratio", min_lr_ratio);
}

double CosineWithHardRestarts::rate(double base_lr, int64_t step) const {
  if (step < warmup_steps) return base_lr * progress_between(0, warmup_steps, step);
  const double progress = progress_after(warmup_steps, total_steps, step);
  if (progress >= 1.0) return 0.0;
  const double in_cycle = std::fmod(static_cast<double>(cycles) * progress, 1.0);
  return base_lr * std::max(0.0, 0.5 * (1.0 + std::cos(kPi * in_cycle)));
}

void CosineWithHardRestarts::validate() const {
  check_warmup_and_total("CosineWithHardRestarts", warmup_steps, total_steps);
  require_at_least("CosineWithHardRestarts", "cycles", cycles, 1);
}

double PolynomialWithWarmup::rate(double base_lr, int64_t step) const {
  if (step < warmup_steps) return base_lr * progress_between(0, warmup_steps, step);
  const double end = std::min(end_lr, base_lr);
  const double left = 1.0 - progress_between(warmup_steps, total_steps, step);
  return (base_lr - end) * std::pow(left, power) + end;
}

void PolynomialWithWarmup::validate() const {
  check_warmup_and_total("PolynomialWithWarmup", warmup_steps, total_steps);
  require_not_negative("PolynomialWithWarmup", "end_lr", end_lr);
  require_positive("PolynomialWithWarmup", "power", power);
}

void PolynomialWithWarmup::check_groups(const std::vector<double>& base_lrs) const {
  const auto highest = std::max_element(base_lrs.begin(), base_lrs.end());
  if (highest == base_lrs.end() || *highest > end_lr) return;
  refuse_option("PolynomialWithWarmup", "end_lr",
                c10::str("less than the optimizer's own rate, ", *highest), c10::str(end_lr));
}

double InverseSqrt::rate(double base_lr, int64_t step) const {
  if (step < warmup_steps) return base_lr * progress_between(0, warmup_steps, step);
  const int64_t scale = timescale.value_or(warmup_steps > 0 ? warmup_steps : 10000);
  const int64_t shift = scale - warmup_steps;
  return base_lr *
         (1.0 / std::sqrt(static_cast<double>(step + shift) / static_cast<double>(scale)));
}

void InverseSqrt::validate() const {
  check_warmup("InverseSqrt", warmup_steps);
  if (timescale) require_at_least("InverseSqrt", "timescale", *timescale, 1);
}

double WarmupStableDecay::rate(double base_lr, int64_t step) const {
  if (step < warmup_steps) {
    const double progress = progress_between(0, warmup_steps, step);
    double factor = progress;
    if (warmup_type == Shape::cosine) factor = 0.5 * (1.0 - std::cos(kPi * progress));
    if (warmup_type == Shape::one_minus_sqrt) factor = 1.0 - std::sqrt(1.0 - progress);
    return base_lr * lifted(factor, min_lr_ratio);
  }
  const int64_t decay_begin = warmup_steps + stable_steps;
  if (step < decay_begin) return base_lr;
  if (step >= decay_begin + decay_steps) return base_lr * min_lr_ratio;
  const double progress = progress_between(decay_begin, decay_begin + decay_steps, step);
  double factor = 1.0 - progress;
  if (decay_type == Shape::cosine) factor = half_cosine(cycles, progress);
  if (decay_type == Shape::one_minus_sqrt) factor = 1.0 - std::sqrt(progress);
  return base_lr * lifted(factor, min_lr_ratio);
}

void WarmupStableDecay::validate() const {
  check_warmup("WarmupStableDecay", warmup_steps);
  require_at_least("WarmupStableDecay", "stable_steps", stable_steps, 0);
  require_at_least("WarmupStableDecay", "decay_steps", decay_steps, 0);
  if (warmup_steps + stable_steps + decay_steps == 0) {
    refuse_option("WarmupStableDecay", "warmup_steps + stable_steps + decay_steps", "at least 1",
                  "0", "give the lengths of the three parts in optimizer updates");
  }
  require_part_of_one("WarmupStableDecay", "min_lr_ratio", min_lr_ratio);
  require_not_negative("WarmupStableDecay", "cycles", cycles);
}

double StepDecay::rate(double base_lr, int64_t step) const {
  return base_lr * std::pow(gamma, static_cast<double>(step / step_size));
}

void StepDecay::validate() const {
  require_at_least("StepDecay", "step_size", step_size, 1);
  require_positive("StepDecay", "gamma", gamma);
}

double MultiStep::rate(double base_lr, int64_t step) const {
  const auto passed = std::count_if(milestones.begin(), milestones.end(),
                                    [&](int64_t milestone) { return milestone <= step; });
  return base_lr * std::pow(gamma, static_cast<double>(passed));
}

void MultiStep::validate() const {
  for (const int64_t milestone : milestones) {
    require_at_least("MultiStep", "a milestone", milestone, 0);
  }
  require_positive("MultiStep", "gamma", gamma);
}

double Exponential::rate(double base_lr, int64_t step) const {
  return base_lr * std::pow(gamma, static_cast<double>(step));
}

void Exponential::validate() const { require_positive("Exponential", "gamma", gamma); }

double CosineAnnealing::rate(double base_lr, int64_t step) const {
  // The remainder keeps the argument small, and with it the error of the cosine.
  const int64_t in_period = step % (2 * t_max);
  const double angle = kPi * static_cast<double>(in_period) / static_cast<double>(t_max);
  return eta_min + (base_lr - eta_min) * (1.0 + std::cos(angle)) / 2.0;
}

void CosineAnnealing::validate() const {
  require_at_least("CosineAnnealing", "t_max", t_max, 1);
  require_not_negative("CosineAnnealing", "eta_min", eta_min);
}

}  // namespace accelerant::optim
