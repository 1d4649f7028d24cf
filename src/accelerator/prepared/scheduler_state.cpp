#include "accelerator/prepared/scheduler_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "accelerant/core/error.h"
#include "accelerator/prepared/optimizer_state.h"
#include "amp/gradient_checks.h"

namespace accelerant::detail {
namespace {

// Maximum number of pending steps. When it is reached, half of them are settled.
constexpr std::size_t kMostPending = 64;

// Whether the optimizer's latest step, if there was one, may have changed the parameters.
bool may_be_updated(const OptimizerState& optimizer) {
  const auto& last = optimizer.last_step();
  return !last || last->kind() == StepResult::Kind::submitted;
}

// A schedule that counts samples would never advance without any.
int64_t require_samples(int64_t samples) {
  if (samples > 0) return samples;
  throw Error(ErrorDetails{.problem = "The schedule counts samples, but there are none to count",
                           .expected = "a loop over a prepared loader around scheduler.step()",
                           .got = "no such loop",
                           .hint = "prepare the loader, or use another schedule_unit"});
}

int64_t steps_for_update(const Core& core,
                         const std::vector<std::shared_ptr<OptimizerState>>& optimizers) {
  switch (core.options.schedule_unit) {
    case ScheduleUnit::update:
    case ScheduleUnit::call:
      break;
    case ScheduleUnit::unsharded_batch:
      return core.options.data_loader.split_batches ? 1 : core.environment.num_processes;
    case ScheduleUnit::sample:
      return require_samples(optimizers.empty() ? core.loaders.progress().samples
                                                : optimizers.front()->samples_of_update());
  }
  return 1;
}

}  // namespace

std::vector<std::shared_ptr<OptimizerState>> SchedulerState::optimizers(const Core& core) const {
  auto all = core.optimizers.all();
  for (const auto& optimizer : all) {
    if (&optimizer->optimizer() == schedule_->optimizer()) return {optimizer};
  }
  if (schedule_->optimizer() != nullptr) return {};
  return all;
}

bool SchedulerState::is_overdue(const Core& core) {
  if (watch_.was_called() || schedule_->needs_metric()) return false;
  const auto followed = optimizers(core);
  const bool follows_a_step = std::ranges::any_of(
      followed, [](const auto& optimizer) { return optimizer->last_step().has_value(); });
  return watch_.is_overdue(core, schedule_->total_steps(), follows_a_step, rates());
}

void SchedulerState::step() {
  const auto core = require_core(core_);
  watch_.note_call();
  // Nothing is updated during a capture: every replay takes the step. Replays do not wait for each
  // other.
  if (core->capture.is_capturing()) {
    return core->capture.note_schedule(*this, [this] { take_step(); });
  }
  settle();
  take_step();
}

void SchedulerState::take_step() {
  const auto core = require_core(core_);
  const auto span = core->timeline().span(Phase::schedule);
  if (core->options.schedule_unit == ScheduleUnit::call) {
    schedule_->advance(1);
    return;
  }
  settle_known();
  if (pending_.size() >= kMostPending) {
    while (pending_.size() > kMostPending / 2) settle_next();
  }
  const auto followed = optimizers(*core);
  const bool may_advance = std::all_of(followed.begin(), followed.end(), [](const auto& optimizer) {
    return optimizer->is_at_boundary() && may_be_updated(*optimizer);
  });
  if (!may_advance) return;
  watch_.before_step(*core);
  Pending pending{.steps = steps_for_update(*core, followed), .rates = rates()};
  for (const auto& optimizer : followed) {
    if (optimizer->last_step()) pending.results.push_back(*optimizer->last_step());
  }
  // Before result.poll(), which may release the flag.
  if (pending.results.size() == 1) pending.flag = pending.results[0].device_flag();
  for (const StepResult& result : pending.results) result.poll();  // requests the answers
  pending_.push_back(std::move(pending));
  settle_known();
}

void SchedulerState::settle() {
  while (!pending_.empty()) settle_next();
}

void SchedulerState::settle_known() {
  const auto is_known = [](const StepResult& result) { return result.poll().has_value(); };
  while (!pending_.empty() && std::ranges::all_of(pending_.front().results, is_known)) {
    settle_next();
  }
}

void SchedulerState::settle_next() {
  const Pending pending = std::move(pending_.front());
  pending_.pop_front();
  const bool updated = std::none_of(pending.results.begin(), pending.results.end(),
                                    [](const StepResult& result) { return result.skipped(); });
  if (!updated && pending.is_counted) ++settled_skips_;
  if (!updated) return;
  const std::vector<double> now = rates();
  schedule_->advance(pending.steps);
  // Rates that the program has set since then override the step, whenever the device reports.
  for (std::size_t i = 0; i < std::min(now.size(), pending.rates.size()); ++i) {
    if (now[i] == pending.rates[i]) continue;
    schedule_->optimizer()->param_groups()[i].options().set_lr(now[i]);
  }
  const auto core = core_.lock();
  if (!core) return;
  const std::vector<double> after = rates();
  for (const auto& scheduler : core->schedulers.all()) {
    scheduler->note_moved(schedule_->optimizer(), now, after);
  }
}

void SchedulerState::note_moved(const torch::optim::Optimizer* optimizer,
                                const std::vector<double>& before,
                                const std::vector<double>& after) {
  if (schedule_->optimizer() != optimizer) return;
  for (Pending& pending : pending_) {
    std::vector<double>& rates = pending.rates;
    for (std::size_t i = 0; i < std::min(rates.size(), before.size()); ++i) {
      if (rates[i] == before[i]) rates[i] = after[i];
    }
  }
}

at::Tensor SchedulerState::count_skips() {
  const at::NoGradGuard no_grad;
  for (Pending& pending : pending_) {
    if (pending.is_counted) continue;
    if (!skips_.defined()) skips_ = at::zeros({1}, pending.flag.options().dtype(at::kLong));
    count_flag(skips_, pending.flag);
    pending.is_counted = true;
  }
  return settled_skips_ == 0 ? skips_ : skips_.sub(settled_skips_);
}

std::optional<RateChoice> SchedulerState::rate_choice() {
  const std::vector<double> now = rates();
  const bool is_simple = std::ranges::all_of(pending_, [&](const Pending& pending) {
    return pending.flag.defined() && pending.steps == 1 && pending.rates == now;
  });
  if (!is_simple) return std::nullopt;
  RateChoice choice;
  for (auto updates = std::ssize(pending_); updates > 0; --updates) {
    auto rates = schedule_->rates_after(updates);
    if (!rates) return std::nullopt;
    choice.rates.push_back(*std::move(rates));
  }
  choice.rates.push_back(now);  // perhaps set by the program
  choice.which = count_skips();
  return choice;
}

std::vector<double> SchedulerState::rates() const {
  std::vector<double> rates;
  if (schedule_->optimizer() == nullptr) return rates;
  for (const auto& group : schedule_->optimizer()->param_groups()) {
    rates.push_back(group.options().get_lr());
  }
  return rates;
}

void SchedulerState::step(double metric) {
  const auto core = require_core(core_);
  core->capture.refuse("a schedule gets a metric from the host");
  const auto span = core->timeline().span(Phase::schedule);
  core->settle_schedules();  // it may lower rates that other schedules have set
  schedule_->advance_by_metric(metric);
}

std::vector<double> SchedulerState::last_lrs() {
  const auto core = require_core(core_);
  core->settle_schedules();
  torch::optim::Optimizer* optimizer = schedule_->optimizer();
  const auto prepared = core->optimizers.all();
  if (optimizer == nullptr && !prepared.empty()) optimizer = &prepared.front()->optimizer();
  std::vector<double> rates;
  if (optimizer == nullptr) return rates;
  for (const auto& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

}  // namespace accelerant::detail
