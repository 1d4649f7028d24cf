// A prepared learning-rate schedule. Call step() after optimizer.step(). The schedule advances only
// with optimizer updates: not in the middle of a window, and not for a step that was skipped
// because of overflow. AcceleratorOptions::schedule_unit says what one step counts.
//
// A Scheduler is a cheap handle; copies refer to the same schedule. An object passed by name is
// borrowed; a temporary is kept inside.
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
  // An empty handle. Assign to it before use; using it is an Error.
  Scheduler() = default;

  // Advances the schedule. Throws Error for reduce-on-plateau, which needs a metric.
  void step() const;

  // For reduce-on-plateau: takes one metric per call. Ignores windows and skipped steps, since a
  // metric belongs to an evaluation, not to an update.
  void step(double metric) const;

  // The current learning rates, one for each parameter group.
  std::vector<double> get_last_lr() const;

  // The state of the schedule itself. For a schedule of torch::optim this is its step count; the
  // rates are part of the optimizer.
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
