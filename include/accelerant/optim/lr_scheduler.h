// Schedulers, which set the learning rate of an optimizer: LrScheduler by a schedule
// (lr_schedule.h), ReduceLrOnPlateau when a metric has stopped improving.
//
//   auto scheduler = accelerant::optim::cosine_with_warmup(
//       optimizer, {.warmup_steps = 100, .total_steps = 1000});
//   for (...) {
//     ...
//     optimizer.step();
//     scheduler.step();  // after each update of the optimizer
//   }
//
// The optimizer is borrowed and must outlive the scheduler. A scheduler belongs to one thread at a
// time.
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

// Applies a schedule. Making one takes the rates of all param groups as their base rates, and sets
// the rate of step 0 at once; a warm-up starts at 0. So an optimizer gets one scheduler: for
// several schedules use Chained or Sequential.
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

  // Goes on by one step if the optimizer was updated, and stays if the update was skipped or not
  // due:
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

  // The keys last_epoch, base_lrs and _last_lr, as in PyTorch. The schedule itself is not part of
  // it: it comes from the program. Include <nlohmann/json.hpp> to use it.
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

// --- One function for each kind ------------------------------------------------------------------

inline LrScheduler constant(torch::optim::Optimizer& optimizer) { return {optimizer, Constant{}}; }

namespace detail {

template <class Kind>
struct MakeScheduler {
  LrScheduler operator()(torch::optim::Optimizer& optimizer, const Kind& options) const {
    return {optimizer, options};
  }
};

}  // namespace detail

// All are called as cosine_with_warmup(optimizer, {.warmup_steps = 100, .total_steps = 1000}).
inline constexpr detail::MakeScheduler<ConstantWithWarmup> constant_with_warmup{};
inline constexpr detail::MakeScheduler<LinearWithWarmup> linear_with_warmup{};
inline constexpr detail::MakeScheduler<CosineWithWarmup> cosine_with_warmup{};
inline constexpr detail::MakeScheduler<CosineWithHardRestarts> cosine_with_hard_restarts{};
inline constexpr detail::MakeScheduler<PolynomialWithWarmup> polynomial_with_warmup{};
inline constexpr detail::MakeScheduler<InverseSqrt> inverse_sqrt{};
inline constexpr detail::MakeScheduler<WarmupStableDecay> warmup_stable_decay{};
inline constexpr detail::MakeScheduler<StepDecay> step_decay{};
inline constexpr detail::MakeScheduler<MultiStep> multi_step{};
inline constexpr detail::MakeScheduler<Exponential> exponential{};
inline constexpr detail::MakeScheduler<CosineAnnealing> cosine_annealing{};
inline constexpr detail::MakeScheduler<OneCycle> one_cycle{};
inline constexpr detail::MakeScheduler<Lambda> lambda{};
inline constexpr detail::MakeScheduler<Chained> chained{};
inline constexpr detail::MakeScheduler<Sequential> sequential{};

struct ReduceLrOnPlateauOptions {
  // What is better: a lower metric, such as a loss, or a higher one, such as an accuracy.
  enum class Mode { min, max };
  Mode mode = Mode::min;

  // The rate is multiplied by this. 0 or more, less than 1.
  double factor = 0.1;

  // Calls of step() without improvement that are let pass; the next one lowers the rate.
  int64_t patience = 10;

  // By how much the metric must be better than the best to count as improved.
  double threshold = 1e-4;

  // What the threshold is: a part of the best value, or an amount.
  enum class ThresholdMode { relative, absolute };
  ThresholdMode threshold_mode = ThresholdMode::relative;

  // Calls of step() after a reduction in which nothing counts as lack of improvement.
  int64_t cooldown = 0;

  // Rates are not lowered below this.
  PerGroup min_lr = 0.0;

  // A reduction by less than this is not done.
  double eps = 1e-8;
};

// Lowers the learning rate when a metric has stopped improving, with the meaning of
// torch.optim.lr_scheduler.ReduceLROnPlateau.
//
//   accelerant::optim::ReduceLrOnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 3});
//   for (each epoch) {
//     ...
//     scheduler.step(validation_loss);  // after each evaluation, not after each update
//   }
//
// Several processes must agree: give all of them the same metric, for example the mean over all,
// and each of them once.
class ReduceLrOnPlateau {
 public:
  using Options = ReduceLrOnPlateauOptions;

  // Throws Error if an option is out of range. The rates stay as they are.
  explicit ReduceLrOnPlateau(torch::optim::Optimizer& optimizer, const Options& options = {});

  // Tells the newest value of the metric. nan is no improvement, as in PyTorch.
  void step(double metric);

  // How many metrics were told.
  int64_t last_step() const { return last_step_; }

  // The rates as of the last step, one for each group.
  const std::vector<double>& get_last_lr() const { return last_lrs_; }

  // The best metric so far; at first infinity, or minus infinity if higher is better.
  double best() const { return best_; }

  torch::optim::Optimizer& optimizer() const { return *optimizer_; }

  // The keys best, num_bad_epochs, cooldown_counter, last_epoch and _last_lr, as in PyTorch; an
  // infinite best is the string "inf" or "-inf", which JSON has no number for. The options are not
  // part of it. Include <nlohmann/json.hpp> to use it.
  nlohmann::json state_dict() const;

  // Takes a state written here, or PyTorch's keys of these names, and sets the rates in it. Values
  // are checked before any is taken.
  void load_state_dict(const nlohmann::json& state);

 private:
  bool is_better(double metric) const;
  void reduce();

  torch::optim::Optimizer* optimizer_;
  Options options_;
  double best_;
  int64_t bad_steps_ = 0;
  int64_t cooldown_left_ = 0;
  int64_t last_step_ = 0;
  std::vector<double> last_lrs_;
};

}  // namespace accelerant::optim
