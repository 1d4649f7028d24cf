// Lowers the learning rate when a metric has stopped improving, with the meaning of
// torch.optim.lr_scheduler.ReduceLROnPlateau.
//
//   accelerant::optim::ReduceLrOnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 3});
//   for (each epoch) {
//     ...
//     scheduler.step(validation_loss);  // after each evaluation, not after each update
//   }
//
// Several processes must agree: give all of them the same metric, for example the mean over all, and
// each of them once.
//
// The optimizer is borrowed and must outlive the scheduler. A scheduler belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "accelerant/optim/per_group.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant::optim {

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

  // Takes a state written here, or PyTorch's keys of these names, and sets the rates in it. Values are
  // checked before any is taken.
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
