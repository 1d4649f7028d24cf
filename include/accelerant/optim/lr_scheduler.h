// Applies a learning-rate schedule to an optimizer.
//
//   auto scheduler = accelerant::optim::cosine_with_warmup(
//       optimizer, {.warmup_steps = 100, .total_steps = 1000});
//   for (...) {
//     ...
//     optimizer.step();
//     scheduler.step();  // after each update of the optimizer
//   }
//
// Making a scheduler takes the rates of all param groups as their base rates, and sets the rate of
// step 0 at once; a warm-up starts at 0. So an optimizer gets one scheduler: for several schedules use
// Chained or Sequential.
//
// The optimizer is borrowed and must outlive the scheduler. A scheduler belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "accelerant/optim/lr_schedule.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant {
class StepResult;
}

namespace accelerant::optim {

class LrScheduler {
 public:
  // Throws Error if the schedule does not fit the optimizer: a list of the wrong length, or a
  // momentum to set where the optimizer has none.
  LrScheduler(torch::optim::Optimizer& optimizer, LrSchedule schedule);

  // Goes on by one step and sets the rates. A group that was added to the optimizer since then
  // enters with its own rate as base rate.
  void step();

  // Goes on by several steps, 0 or more, at once.
  void step(int64_t count);

  // Goes on by one step if the optimizer was updated, and stays if the update was skipped or not due:
  //   scheduler.step(scaler.step(optimizer));
  // Waits for the device where the decision was made there.
  void step(const StepResult& result);

  // The number of the step in force; 0 at first.
  int64_t last_step() const { return last_step_; }

  // The rates in force, one for each group.
  const std::vector<double>& get_last_lr() const { return last_lrs_; }

  // The rates at any step, 0 or more, one for each group.
  std::vector<double> rates_at(int64_t step) const;

  // The rates that the schedule starts from, one for each group.
  const std::vector<double>& base_lrs() const { return base_lrs_; }

  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  const LrSchedule& schedule() const { return schedule_; }

  // The keys last_epoch, base_lrs and _last_lr, as in PyTorch. The schedule itself is not part of it:
  // it comes from the program. Include <nlohmann/json.hpp> to use it.
  nlohmann::json state_dict() const;

  // Takes a state written here or by a scheduler of PyTorch that has those keys, and sets the rates
  // that the schedule has at that step. Values are checked before any is taken.
  void load_state_dict(const nlohmann::json& state);

 private:
  // Sets rates and momentum of a step; what can be refused is refused before anything is changed.
  void apply(int64_t step, std::vector<double> base_lrs);
  std::vector<double> rates_at(int64_t step, const std::vector<double>& base_lrs) const;

  torch::optim::Optimizer* optimizer_;
  LrSchedule schedule_;
  int64_t last_step_ = 0;
  std::vector<double> base_lrs_;
  std::vector<double> last_lrs_;
};

// --- One function for each kind -------------------------------------------------------------------

inline LrScheduler constant(torch::optim::Optimizer& optimizer) { return {optimizer, Constant{}}; }

inline LrScheduler constant_with_warmup(torch::optim::Optimizer& optimizer,
                                        const ConstantWithWarmup& options) {
  return {optimizer, options};
}

inline LrScheduler linear_with_warmup(torch::optim::Optimizer& optimizer,
                                      const LinearWithWarmup& options) {
  return {optimizer, options};
}

inline LrScheduler cosine_with_warmup(torch::optim::Optimizer& optimizer,
                                      const CosineWithWarmup& options) {
  return {optimizer, options};
}

inline LrScheduler cosine_with_hard_restarts(torch::optim::Optimizer& optimizer,
                                             const CosineWithHardRestarts& options) {
  return {optimizer, options};
}

inline LrScheduler polynomial_with_warmup(torch::optim::Optimizer& optimizer,
                                          const PolynomialWithWarmup& options) {
  return {optimizer, options};
}

inline LrScheduler inverse_sqrt(torch::optim::Optimizer& optimizer, const InverseSqrt& options) {
  return {optimizer, options};
}

inline LrScheduler warmup_stable_decay(torch::optim::Optimizer& optimizer,
                                       const WarmupStableDecay& options) {
  return {optimizer, options};
}

inline LrScheduler step_decay(torch::optim::Optimizer& optimizer, const StepDecay& options) {
  return {optimizer, options};
}

inline LrScheduler multi_step(torch::optim::Optimizer& optimizer, const MultiStep& options) {
  return {optimizer, options};
}

inline LrScheduler exponential(torch::optim::Optimizer& optimizer, const Exponential& options) {
  return {optimizer, options};
}

inline LrScheduler cosine_annealing(torch::optim::Optimizer& optimizer,
                                    const CosineAnnealing& options) {
  return {optimizer, options};
}

inline LrScheduler one_cycle(torch::optim::Optimizer& optimizer, const OneCycle& options) {
  return {optimizer, options};
}

inline LrScheduler lambda(torch::optim::Optimizer& optimizer, const Lambda& options) {
  return {optimizer, options};
}

inline LrScheduler chained(torch::optim::Optimizer& optimizer, const Chained& options) {
  return {optimizer, options};
}

inline LrScheduler sequential(torch::optim::Optimizer& optimizer, const Sequential& options) {
  return {optimizer, options};
}

}  // namespace accelerant::optim
