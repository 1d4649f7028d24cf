// Schedulers set the learning rate of an optimizer: LrScheduler by a schedule (lr_schedule.h),
// ReduceLrOnPlateau when a metric has stopped improving.
//
//   auto scheduler = accelerant::optim::cosine_with_warmup(
//       optimizer, {.warmup_steps = 100, .total_steps = 1000});
//   for (...) {
//     ...
//     optimizer.step();
//     scheduler.step();  // after each update of the optimizer
//   }
//
// The optimizer is borrowed and must outlive the scheduler. Use a scheduler from one thread at a
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

// Applies a schedule. The constructor takes the current rates of all param groups as their base
// rates, and sets the rate of step 0 at once; a warm-up starts at 0. So use one scheduler per
// optimizer; for several schedules use Chained or Sequential.
class LrScheduler {
 public:
  // Throws Error if the schedule does not match the optimizer: a list of the wrong length, or a
  // momentum for an optimizer that has none.
  LrScheduler(torch::optim::Optimizer& optimizer, LrSchedule schedule);

  // Advances by one step and sets the rates. A group added to the optimizer since then enters with
  // its own rate as base rate.
  void step();

  // Advances by `count` steps at once; at least 0.
  void step(int64_t count);

  // Advances by one step if the optimizer was updated; does nothing if the update was skipped or
  // not due:
  //   scheduler.step(scaler.step(optimizer));
  // Waits for the device if the decision was made there.
  void step(const StepResult& result);

  // The current step; initially 0.
  int64_t last_step() const { return last_step_; }

  // The current rates, one per group.
  const std::vector<double>& get_last_lr() const { return last_lrs_; }

  // The rates at any step, at least 0; one per group.
  std::vector<double> rates_at(int64_t step) const;

  // The rates that the schedule starts from, one per group.
  const std::vector<double>& base_lrs() const { return base_lrs_; }

  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  const LrSchedule& schedule() const { return schedule_; }

  // The keys last_epoch, base_lrs and _last_lr, as in PyTorch. The schedule itself is not included:
  // it comes from the program. Include <nlohmann/json.hpp> to use it.
  nlohmann::json state_dict() const;

  // Loads a state written here or by a PyTorch scheduler with those keys, and sets the schedule's
  // rates for that step. Checks all values before applying any.
  void load_state_dict(const nlohmann::json& state);

 private:
  // Sets rates and momentum of a step; throws before changing anything.
  void apply(int64_t step, std::vector<double> base_lrs);
  std::vector<double> rates_at(int64_t step, const std::vector<double>& base_lrs) const;

  torch::optim::Optimizer* optimizer_;
  LrSchedule schedule_;
  int64_t last_step_ = 0;
  std::vector<double> base_lrs_;
  std::vector<double> last_lrs_;
};

// --- One function per kind ------------------------------------------------------------------

inline LrScheduler constant(torch::optim::Optimizer& optimizer) { return {optimizer, Constant{}}; }

namespace detail {

template <class Kind>
struct MakeScheduler {
  LrScheduler operator()(torch::optim::Optimizer& optimizer, const Kind& options) const {
    return {optimizer, options};
  }
};

}  // namespace detail

// Call them like cosine_with_warmup(optimizer, {.warmup_steps = 100, .total_steps = 1000}).
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
  // Which is better: a lower metric, such as a loss, or a higher one, such as an accuracy. Default:
  // lower.
  enum class Mode { min, max };
  Mode mode = Mode::min;

  // The rate is multiplied by this. At least 0, less than 1. Default: 0.1.
  double factor = 0.1;

  // Calls of step() without improvement to tolerate; the next one lowers the rate. Default: 10.
  int64_t patience = 10;

  // By how much the metric must exceed the best to count as an improvement. Default: 1e-4.
  double threshold = 1e-4;

  // Whether the threshold is a fraction of the best value or an absolute amount. Default: relative.
  enum class ThresholdMode { relative, absolute };
  ThresholdMode threshold_mode = ThresholdMode::relative;

  // Calls of step() after a reduction during which a lack of improvement does not count. Default:
  // 0.
  int64_t cooldown = 0;

  // Rates are not lowered below this. Default: 0.
  PerGroup min_lr = 0.0;

  // A reduction by less than this is not applied. Default: 1e-8.
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
// With several processes, pass the same metric to all of them, for example the mean over all
// processes.
class ReduceLrOnPlateau {
 public:
  using Options = ReduceLrOnPlateauOptions;

  // Throws Error if an option is out of range. Does not change the rates.
  explicit ReduceLrOnPlateau(torch::optim::Optimizer& optimizer, const Options& options = {});

  // Reports the newest value of the metric. nan is not an improvement, as in PyTorch.
  void step(double metric);

  // How many metrics were reported.
  int64_t last_step() const { return last_step_; }

  // The rates as of the last step, one per group.
  const std::vector<double>& get_last_lr() const { return last_lrs_; }

  // The best metric so far; initially infinity, or minus infinity if higher is better.
  double best() const { return best_; }

  torch::optim::Optimizer& optimizer() const { return *optimizer_; }

  // The keys best, num_bad_epochs, cooldown_counter, last_epoch and _last_lr, as in PyTorch. An
  // infinite best is the string "inf" or "-inf", because JSON has no such number. The options are
  // not included. Include <nlohmann/json.hpp> to use it.
  nlohmann::json state_dict() const;

  // Loads a state written here, or PyTorch's keys of the same names, and sets the rates in it.
  // Checks all values before applying any.
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
