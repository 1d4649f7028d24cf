#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"
#include "accelerator/prepared/scheduler_state.h"

namespace accelerant::detail {
namespace {

[[noreturn]] void refuse_metric() {
  throw Error(ErrorDetails{.problem = "This schedule takes no metric",
                           .expected = "step()",
                           .got = "step(metric)",
                           .hint = "only reduce-on-plateau follows a metric"});
}

class ClosedForm : public ScheduleAccess {
 public:
  explicit ClosedForm(std::shared_ptr<optim::LrScheduler> scheduler)
      : scheduler_(std::move(scheduler)) {}

  const void* identity() const override { return scheduler_.get(); }
  torch::optim::Optimizer* optimizer() const override { return &scheduler_->optimizer(); }
  std::optional<std::vector<double>> rates_after(int64_t steps) const override {
    const bool has_all_groups =
        scheduler_->base_lrs().size() == scheduler_->optimizer().param_groups().size();
    if (!has_all_groups || scheduler_->schedule().sets_momentum()) return std::nullopt;
    try {
      return scheduler_->rates_at(scheduler_->last_step() + steps);
    } catch (const std::exception&) {  // skipped updates may avoid this step
      return std::nullopt;
    }
  }
  std::optional<int64_t> total_steps() const override {
    return scheduler_->schedule().total_steps();
  }
  void advance(int64_t steps) override { scheduler_->step(steps); }
  void advance_by_metric(double) override { refuse_metric(); }
  nlohmann::json state_dict() const override { return scheduler_->state_dict(); }
  void load_state_dict(const nlohmann::json& state) override { scheduler_->load_state_dict(state); }

 private:
  std::shared_ptr<optim::LrScheduler> scheduler_;
};

class Plateau : public ScheduleAccess {
 public:
  explicit Plateau(std::shared_ptr<optim::ReduceLrOnPlateau> scheduler)
      : scheduler_(std::move(scheduler)) {}

  const void* identity() const override { return scheduler_.get(); }
  torch::optim::Optimizer* optimizer() const override { return &scheduler_->optimizer(); }
  bool needs_metric() const override { return true; }
  void advance(int64_t) override {
    throw Error(
        ErrorDetails{.problem = "Reduce-on-plateau needs a metric",
                     .expected = "step(metric)",
                     .got = "step()",
                     .hint = "call step(metric) after each evaluation, for example with the loss"});
  }
  void advance_by_metric(double metric) override { scheduler_->step(metric); }
  nlohmann::json state_dict() const override { return scheduler_->state_dict(); }
  void load_state_dict(const nlohmann::json& state) override { scheduler_->load_state_dict(state); }

 private:
  std::shared_ptr<optim::ReduceLrOnPlateau> scheduler_;
};

class TorchSchedule : public ScheduleAccess {
 public:
  explicit TorchSchedule(torch::optim::LRScheduler& scheduler) : scheduler_(scheduler) {}

  const void* identity() const override { return &scheduler_; }
  torch::optim::Optimizer* optimizer() const override { return nullptr; }
  void advance(int64_t steps) override {
    for (int64_t i = 0; i < steps; ++i) scheduler_.step();
  }
  void advance_by_metric(double) override { refuse_metric(); }
  // The rates themselves are part of the optimizer.
  nlohmann::json state_dict() const override { return {{"step_count", StepCount::of(scheduler_)}}; }
  void load_state_dict(const nlohmann::json& state) override {
    StepCount::of(scheduler_) = state.at("step_count").get<unsigned>();
  }

 private:
  // The count is only accessible to derived classes.
  struct StepCount : torch::optim::LRScheduler {
    static unsigned& of(torch::optim::LRScheduler& scheduler) {
      return scheduler.*(&StepCount::step_count_);
    }
  };

  torch::optim::LRScheduler& scheduler_;
};

}  // namespace

std::unique_ptr<ScheduleAccess> access_to(std::shared_ptr<optim::LrScheduler> scheduler) {
  return std::make_unique<ClosedForm>(std::move(scheduler));
}

std::unique_ptr<ScheduleAccess> access_to(std::shared_ptr<optim::ReduceLrOnPlateau> scheduler) {
  return std::make_unique<Plateau>(std::move(scheduler));
}

std::unique_ptr<ScheduleAccess> access_to(torch::optim::LRScheduler& scheduler) {
  return std::make_unique<TorchSchedule>(scheduler);
}

}  // namespace accelerant::detail
