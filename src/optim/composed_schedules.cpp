// User-defined functions, and schedules composed of schedules.
#include <algorithm>
#include <cmath>

#include "accelerant/optim/lr_schedule.h"
#include "optim/option_checks.h"

namespace accelerant::optim {
namespace {

using detail::refuse_option;

bool any_sets_momentum(const std::vector<LrSchedule>& schedules) {
  return std::any_of(schedules.begin(), schedules.end(),
                     [](const LrSchedule& schedule) { return schedule.sets_momentum(); });
}

// Which schedule of a Sequential is active, and its own step.
struct Place {
  const LrSchedule& schedule;
  int64_t step;
};

Place place_of(const Sequential& sequence, int64_t step) {
  const auto& milestones = sequence.milestones;
  const auto next = std::upper_bound(milestones.begin(), milestones.end(), step);
  const auto index = static_cast<std::size_t>(next - milestones.begin());
  return {sequence.schedules[index], index == 0 ? step : step - milestones[index - 1]};
}

}  // namespace

double Lambda::rate(double base_lr, int64_t step, std::size_t group) const {
  const double value = per_group.empty() ? factor(step) : per_group.at(group)(step);
  if (std::isfinite(value)) return base_lr * value;
  throw Error(ErrorDetails{
      .problem =
          c10::str("The function of a Lambda schedule returned an invalid factor at step ", step),
      .expected = "a finite factor",
      .got = c10::str(value)});
}

void Lambda::validate() const {
  const bool has_empty = std::any_of(per_group.begin(), per_group.end(),
                                     [](const Factor& function) { return !function; });
  if (static_cast<bool>(factor) == per_group.empty() && !has_empty) return;
  throw Error(ErrorDetails{.problem = "Lambda needs exactly one of factor and per_group",
                           .expected = "either factor, or per_group with one function per group",
                           .got = has_empty ? "an empty function"
                                  : factor  ? "both"
                                            : "neither"});
}

void Lambda::check_groups(const std::vector<double>& base_lrs) const {
  if (per_group.empty() || per_group.size() == base_lrs.size()) return;
  refuse_option("Lambda", "the number of functions in per_group",
                c10::str(base_lrs.size(), ", one per param group"), c10::str(per_group.size()));
}

double Chained::rate(double base_lr, int64_t step, std::size_t group) const {
  for (const LrSchedule& schedule : schedules) base_lr = schedule.rate(base_lr, step, group);
  return base_lr;
}

std::optional<double> Chained::momentum(int64_t step, std::size_t group) const {
  std::optional<double> result;
  for (const LrSchedule& schedule : schedules) {
    if (const auto momentum = schedule.momentum(step, group)) result = momentum;
  }
  return result;
}

bool Chained::sets_momentum() const { return any_sets_momentum(schedules); }

void Chained::validate() const {
  if (schedules.empty()) refuse_option("Chained", "the number of schedules", "at least 1", "0");
}

void Chained::check_groups(const std::vector<double>& base_lrs) const {
  for (const LrSchedule& schedule : schedules) schedule.check_groups(base_lrs);
}

double Sequential::rate(double base_lr, int64_t step, std::size_t group) const {
  const Place place = place_of(*this, step);
  return place.schedule.rate(base_lr, place.step, group);
}

std::optional<double> Sequential::momentum(int64_t step, std::size_t group) const {
  const Place place = place_of(*this, step);
  return place.schedule.momentum(place.step, group);
}

bool Sequential::sets_momentum() const { return any_sets_momentum(schedules); }

void Sequential::validate() const {
  if (schedules.empty()) refuse_option("Sequential", "the number of schedules", "at least 1", "0");
  if (milestones.size() + 1 != schedules.size()) {
    refuse_option("Sequential", "the number of milestones",
                  c10::str(schedules.size() - 1, ", one less than there are schedules"),
                  c10::str(milestones.size()));
  }
  int64_t previous = 0;
  for (const int64_t milestone : milestones) {
    if (milestone <= previous) {
      refuse_option("Sequential", "a milestone", c10::str("more than ", previous),
                    c10::str(milestone), "milestones are steps after 0, in increasing order");
    }
    previous = milestone;
  }
}

void Sequential::check_groups(const std::vector<double>& base_lrs) const {
  for (const LrSchedule& schedule : schedules) schedule.check_groups(base_lrs);
}

}  // namespace accelerant::optim
