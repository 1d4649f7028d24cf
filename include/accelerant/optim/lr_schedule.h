// Learning-rate schedules: the rate as a function of the step.
//
//   const accelerant::optim::CosineWithWarmup schedule{.warmup_steps = 100, .total_steps = 1000};
//   double rate = schedule.rate(3e-4, 550);  // of a group whose own rate is 3e-4, at step 550
//
// Each kind is a plain struct of options with a closed form `rate(base_lr, step)`, so a schedule
// has no state except the step number, and can be evaluated at any step. LrScheduler
// (lr_scheduler.h) applies one to an optimizer. An LrSchedule holds any kind, including your own
// struct with `double rate(double base_lr, int64_t step) const`.
//
// A step is one update of the optimizer. Step 0 is the state before the first update. After its
// last step a schedule keeps its final rate, except for cosines, which continue their wave as in
// Python. `base_lr` is the rate that the optimizer was created with.
//
// Options are checked when an LrSchedule or LrScheduler is created from them; an Error names the
// option. docs/schedules.md has the formulas, and the names in transformers and
// torch.optim.lr_scheduler.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace accelerant::optim {

// An option that is either one number for all param groups of an optimizer, or one per group.
//
//   .max_lr = 0.1            // all groups
//   .max_lr = {0.1, 0.01}    // the first and the second of two groups
class PerGroup {
 public:
  PerGroup() = default;  // not given
  PerGroup(double value) : values_{value}, is_list_(false) {}
  PerGroup(std::initializer_list<double> values) : values_(values) {}
  PerGroup(std::vector<double> values) : values_(std::move(values)) {}

  bool empty() const { return values_.empty(); }

  // The number for a group. Throws Error if there is none; see check_size().
  double of(std::size_t group) const;

  // Throws Error if this is a list whose length is not the number of groups. `name` is the option's
  // name, for the message.
  void check_size(std::size_t groups, const char* name) const;

  // What was given: one number, or the list.
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<double> values_;
  bool is_list_ = true;  // as in Python, a list of one does not apply to all groups
};

// --- With warm-up, as in transformers ------------------------------------------------------------

// The base rate, always.
struct Constant {
  double rate(double base_lr, int64_t step) const;
};

// A straight line from 0 to the base rate, then the base rate.
struct ConstantWithWarmup {
  int64_t warmup_steps = 0;  // steps of warm-up; 0: none

  double rate(double base_lr, int64_t step) const;
  void validate() const;
};

// Linear from 0 to the base rate, then linear down to 0.
struct LinearWithWarmup {
  int64_t warmup_steps = 0;  // steps of warm-up; 0: none
  int64_t total_steps = 0;   // steps of the whole run, including warm-up; at least 1

  double rate(double base_lr, int64_t step) const;
  void validate() const;
};

// Linear from 0 to the base rate, then down along a cosine.
struct CosineWithWarmup {
  int64_t warmup_steps = 0;   // steps of warm-up; 0: none
  int64_t total_steps = 0;    // steps of the whole run, including warm-up; at least 1
  double cycles = 0.5;        // waves of the cosine; half a wave goes down once
  double min_lr_ratio = 0.0;  // the lowest rate as a fraction of the base rate, 0 to 1

  double rate(double base_lr, int64_t step) const;
  void validate() const;
};

// Linear from 0 to the base rate, then several times down to 0 along half a cosine.
struct CosineWithHardRestarts {
  int64_t warmup_steps = 0;  // steps of warm-up; 0: none
  int64_t total_steps = 0;   // steps of the whole run, including warm-up; at least 1
  int64_t cycles = 1;        // how often the rate goes down; at least 1

  double rate(double base_lr, int64_t step) const;
  void validate() const;
};

// Linear from 0 to the base rate, then down to end_lr as a power of the remaining steps.
struct PolynomialWithWarmup {
  int64_t warmup_steps = 0;  // steps of warm-up; 0: none
  int64_t total_steps = 0;   // steps of the whole run, including warm-up; at least 1
  double end_lr = 1e-7;      // the last rate; a group whose own rate is lower keeps it
  double power = 1.0;        // exponent of the remaining fraction of the steps; above 0

  double rate(double base_lr, int64_t step) const;
  void validate() const;
  void check_groups(const std::vector<double>& base_lrs) const;
};

// Linear from 0 to the base rate, then down as one over the square root of the step.
struct InverseSqrt {
  int64_t warmup_steps = 0;               // steps of warm-up; 0: none
  std::optional<int64_t> timescale = {};  // steps; default: warmup_steps, or 10000 if that is 0

  double rate(double base_lr, int64_t step) const;
  void validate() const;
};

// Warm-up, stable and decay phases: "wsd" in transformers. The length of the stable phase can be
// decided late.
struct WarmupStableDecay {
  enum class Shape { linear, cosine, one_minus_sqrt };

  int64_t warmup_steps = 0;           // steps of warm-up; 0: none
  int64_t stable_steps = 0;           // steps at the base rate
  int64_t decay_steps = 0;            // steps of decay
  Shape warmup_type = Shape::linear;  // shape of the warm-up
  Shape decay_type = Shape::cosine;   // shape of the decay
  double min_lr_ratio = 0.0;          // first and last rate as a fraction of the base rate, 0 to 1
  double cycles = 0.5;                // waves of a cosine decay; half a wave goes down once

  double rate(double base_lr, int64_t step) const;
  void validate() const;
};

// --- As in torch.optim.lr_scheduler --------------------------------------------------------------

// Multiplied by gamma every step_size steps.
struct StepDecay {
  int64_t step_size = 0;  // at least 1
  double gamma = 0.1;     // above 0

  double rate(double base_lr, int64_t step) const;
  void validate() const;
};

// Multiplied by gamma at each milestone.
struct MultiStep {
  std::vector<int64_t> milestones = {};  // in any order; a repeated milestone counts again
  double gamma = 0.1;                    // above 0

  double rate(double base_lr, int64_t step) const;
  void validate() const;
};

// Multiplied by gamma at each step.
struct Exponential {
  double gamma = 0.0;  // above 0, for example 0.999

  double rate(double base_lr, int64_t step) const;
  void validate() const;
};

// Along a cosine from the base rate to eta_min and, as in PyTorch, up again after t_max steps.
struct CosineAnnealing {
  int64_t t_max = 0;     // steps from the highest to the lowest rate; at least 1
  double eta_min = 0.0;  // the lowest rate

  double rate(double base_lr, int64_t step) const;
  void validate() const;
};

// Rises to max_lr, then falls far below the initial rate, while momentum moves the other way.
struct OneCycle {
  enum class Anneal { cos, linear };

  PerGroup max_lr = {};           // the highest rate; default: the base rate of each group
  int64_t total_steps = 0;        // steps of the whole run; at least 1
  double pct_start = 0.3;         // the fraction of the run in which the rate rises, 0 to 1
  Anneal anneal = Anneal::cos;    // the shape of all phases
  double div_factor = 25.0;       // the first rate is max_lr / div_factor
  double final_div_factor = 1e4;  // the last rate is the first / final_div_factor
  bool three_phase = false;       // fall to the first rate as fast as the rise, then to the last
  bool cycle_momentum = true;     // set the momentum of SGD and RMSprop, betas[0] of Adam and AdamW
  PerGroup base_momentum = 0.85;  // the lowest momentum, at the highest rate
  PerGroup max_momentum = 0.95;   // the highest momentum, at the start and at the end

  double rate(double base_lr, int64_t step, std::size_t group = 0) const;
  std::optional<double> momentum(int64_t step, std::size_t group = 0) const;
  bool sets_momentum() const { return cycle_momentum; }
  void validate() const;
  void check_groups(const std::vector<double>& base_lrs) const;
};

// --- Your own, and compositions ------------------------------------------------------------------

// The base rate times a function of the step. Set one of the two fields.
struct Lambda {
  using Factor = std::function<double(int64_t step)>;

  Factor factor = {};                  // for all groups
  std::vector<Factor> per_group = {};  // one per group

  // Throws Error if the function returns inf or nan.
  double rate(double base_lr, int64_t step, std::size_t group = 0) const;
  void validate() const;
  void check_groups(const std::vector<double>& base_lrs) const;
};

// Any schedule. A cheap handle: copies share one immutable schedule.
class LrSchedule {
 public:
  // Throws Error if an option is out of range.
  template <class Kind>
  requires(!std::same_as<Kind, LrSchedule> && requires(const Kind& kind) {
    { kind.rate(1.0, int64_t{0}) } -> std::convertible_to<double>;
  }) LrSchedule(Kind kind) {
    if constexpr (requires { kind.validate(); }) kind.validate();
    schedule_ = std::make_shared<const Holder<Kind>>(std::move(kind));
  }

  // The rate at a step, at least 0, of a group with the given base rate. `group` is its index, for
  // schedules that treat groups differently.
  double rate(double base_lr, int64_t step, std::size_t group = 0) const {
    return schedule_->rate(base_lr, step, group);
  }

  // The momentum at a step; empty if the schedule does not set it there.
  std::optional<double> momentum(int64_t step, std::size_t group = 0) const {
    return schedule_->momentum(step, group);
  }

  // The option total_steps of kinds that have one.
  std::optional<int64_t> total_steps() const { return schedule_->total_steps(); }

  // Whether the schedule sets the momentum at any step.
  bool sets_momentum() const { return schedule_->sets_momentum(); }

  // Throws Error if the schedule does not match groups with these base rates.
  void check_groups(const std::vector<double>& base_lrs) const {
    schedule_->check_groups(base_lrs);
  }

 private:
  struct Interface {
    virtual ~Interface() = default;
    virtual double rate(double base_lr, int64_t step, std::size_t group) const = 0;
    virtual std::optional<double> momentum(int64_t step, std::size_t group) const = 0;
    virtual std::optional<int64_t> total_steps() const = 0;
    virtual bool sets_momentum() const = 0;
    virtual void check_groups(const std::vector<double>& base_lrs) const = 0;
  };

  // Supplies what a kind does not define: it then treats groups alike and does not set momentum.
  template <class Kind>
  struct Holder final : Interface {
    explicit Holder(Kind given) : kind(std::move(given)) {}

    double rate(double base_lr, int64_t step, std::size_t group) const override {
      if constexpr (requires { kind.rate(base_lr, step, group); }) {
        return kind.rate(base_lr, step, group);
      } else {
        return kind.rate(base_lr, step);
      }
    }
    std::optional<double> momentum(int64_t step, std::size_t group) const override {
      if constexpr (requires { kind.momentum(step, group); }) {
        return sets_momentum() ? kind.momentum(step, group) : std::nullopt;
      } else {
        return std::nullopt;
      }
    }
    std::optional<int64_t> total_steps() const override {
      if constexpr (requires { int64_t{kind.total_steps}; }) {
        return kind.total_steps;
      } else {
        return std::nullopt;
      }
    }
    bool sets_momentum() const override {
      if constexpr (requires { kind.sets_momentum(); }) {
        return kind.sets_momentum();
      } else {
        return requires { kind.momentum(int64_t{}, std::size_t{}); };
      }
    }
    void check_groups(const std::vector<double>& base_lrs) const override {
      if constexpr (requires { kind.check_groups(base_lrs); }) kind.check_groups(base_lrs);
    }

    Kind kind;
  };

  std::shared_ptr<const Interface> schedule_;
};

// Several schedules at once: the rate of the first is the base rate of the second, and so on, so
// factors multiply.
struct Chained {
  std::vector<LrSchedule> schedules = {};  // at least one; a schedule that ignores its base rate,
                                           // such as OneCycle with a max_lr, must be the first

  double rate(double base_lr, int64_t step, std::size_t group = 0) const;
  std::optional<double> momentum(int64_t step, std::size_t group = 0) const;
  bool sets_momentum() const;
  void validate() const;
  void check_groups(const std::vector<double>& base_lrs) const;
};

// Several schedules in sequence. Each starts at its milestone, with its own step 0 and the base
// rate.
struct Sequential {
  std::vector<LrSchedule> schedules = {};  // at least one
  std::vector<int64_t> milestones = {};  // the first step of the second, the third, ...; increasing

  double rate(double base_lr, int64_t step, std::size_t group = 0) const;
  std::optional<double> momentum(int64_t step, std::size_t group = 0) const;
  bool sets_momentum() const;
  void validate() const;
  void check_groups(const std::vector<double>& base_lrs) const;
};

}  // namespace accelerant::optim
