// A prepared learning-rate schedule. Call step() after optimizer.step(): it advances with the
// optimizer's updates, so neither in the middle of a window nor for a step that overflow skipped.
// What one step stands for is AcceleratorOptions::schedule_unit.
//
// A Scheduler is a cheap handle, copies mean the same schedule. An object given by name is
// borrowed, a temporary is kept inside.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <utility>
#include <vector>

namespace accelerant {

namespace detail {
class SchedulerState;
}

class Scheduler {
 public:
  // An empty handle, to be assigned to. Using it is an Error.
  Scheduler() = default;

  // Advances the schedule. An Error for reduce-on-plateau, which needs a metric.
  void step() const;

  // For reduce-on-plateau: takes a metric, once for each call. It does not look at windows and
  // skipped steps, since a metric belongs to an evaluation, not to an update.
  void step(double metric) const;

  // The learning rates in force, one for each group of parameters.
  std::vector<double> get_last_lr() const;

  // What the schedule itself saves. Of a schedule of torch::optim that is the count of its steps;
  // the rates are part of the optimizer.
  nlohmann::json state_dict() const;
  void load_state_dict(const nlohmann::json& state) const;

  // Handles of the same schedule are equal.
  friend bool operator==(const Scheduler& a, const Scheduler& b) { return a.state_ == b.state_; }

 private:
  friend class Accelerator;

  explicit Scheduler(std::shared_ptr<detail::SchedulerState> state) : state_(std::move(state)) {}

  detail::SchedulerState& state() const;

  std::shared_ptr<detail::SchedulerState> state_;
};

}  // namespace accelerant
