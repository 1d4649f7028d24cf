#include "accelerant/accelerator/scheduler.h"

#include <torch/optim/optimizer.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"
#include "accelerator/capture/recorder.h"
#include "accelerator/optimizer_state.h"
#include "accelerator/scheduler_state.h"

namespace accelerant {
namespace detail {
namespace {

// Whether the optimizer's latest step, if there was one, may have changed the parameters.
bool may_be_updated(const OptimizerState& optimizer) {
  const auto& last = optimizer.last_step();
  return !last || last->kind() == StepResult::Kind::submitted;
}

// A schedule that counts samples and is never told of any would stand still.
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
      return require_samples(optimizers.empty() ? core.loader_progress().samples
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

void SchedulerState::step() {
  const auto core = require_core(core_);
  // Nothing has been updated yet: it is due with each replay.
  if (core->recorder != nullptr && core->recorder->is_capturing()) {
    core->recorder->note_schedule(*this, [this] { step(); });
    return;
  }
  const auto span = core->timeline().span(Phase::schedule);
  if (core->options.schedule_unit == ScheduleUnit::call) {
    schedule_->advance(1);
    return;
  }
  settle();
  const auto followed = optimizers(*core);
  const bool may_advance = std::all_of(followed.begin(), followed.end(), [](const auto& optimizer) {
    return optimizer->is_at_boundary() && may_be_updated(*optimizer);
  });
  if (!may_advance) return;
  pending_ = Pending{.steps = steps_for_update(*core, followed), .rates = rates()};
  bool is_known = true;
  for (const auto& optimizer : followed) {
    if (!optimizer->last_step()) continue;
    pending_->results.push_back(*optimizer->last_step());
    // Asked of all: the first question sends for the answer.
    is_known = pending_->results.back().poll().has_value() && is_known;
  }
  if (is_known) settle();
}

void SchedulerState::settle() {
  if (!pending_) return;
  const Pending pending = *std::exchange(pending_, std::nullopt);
  const bool updated = std::none_of(pending.results.begin(), pending.results.end(),
                                    [](const StepResult& result) { return result.skipped(); });
  if (!updated) return;
  const std::vector<double> now = rates();
  schedule_->advance(pending.steps);
  // Rates that the program has set since then came after the step, whenever the device tells.
  for (std::size_t i = 0; i < std::min(now.size(), pending.rates.size()); ++i) {
    if (now[i] == pending.rates[i]) continue;
    schedule_->optimizer()->param_groups()[i].options().set_lr(now[i]);
  }
  const auto core = core_.lock();
  if (!core) return;
  const std::vector<double> after = rates();
  for (const auto& other : core->schedulers.all()) {
    if (other.get() != this) other->note_moved(schedule_->optimizer(), now, after);
  }
}

void SchedulerState::note_moved(const torch::optim::Optimizer* optimizer,
                                const std::vector<double>& before,
                                const std::vector<double>& after) {
  if (!pending_ || schedule_->optimizer() != optimizer) return;
  std::vector<double>& rates = pending_->rates;
  for (std::size_t i = 0; i < std::min(rates.size(), before.size()); ++i) {
    if (rates[i] == before[i]) rates[i] = after[i];
  }
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
  if (core->recorder != nullptr) core->recorder->refuse("a schedule gets a metric of the host");
  const auto span = core->timeline().span(Phase::schedule);
  core->settle_schedules();  // it may lower what others have set
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

}  // namespace detail

detail::SchedulerState& Scheduler::state() const {
  if (!state_) detail::refuse_empty_handle("Scheduler");
  return *state_;
}

void Scheduler::step() const { state().step(); }
void Scheduler::step(double metric) const { state().step(metric); }
std::vector<double> Scheduler::get_last_lr() const { return state().last_lrs(); }
nlohmann::json Scheduler::state_dict() const { return state().schedule().state_dict(); }

void Scheduler::load_state_dict(const nlohmann::json& given) const {
  state().schedule().load_state_dict(given);
}

}  // namespace accelerant
