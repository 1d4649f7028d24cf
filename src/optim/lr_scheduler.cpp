#include "accelerant/optim/lr_scheduler.h"

#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "accelerant/amp/step_result.h"
#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "core/texts.h"
#include "optim/option_checks.h"
#include "optim/param_groups.h"

namespace accelerant::optim {
namespace {

constexpr const char* kScheduler = "LrScheduler";

void require_momentum(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (detail::has_momentum(group.options())) continue;
    throw Error("optimizer must support momentum or beta1 with `cycle_momentum` option enabled",
                "set .cycle_momentum = false, or use SGD, RMSprop, Adam or AdamW");
  }
}

}  // namespace

LrScheduler::LrScheduler(torch::optim::Optimizer& optimizer, LrSchedule schedule)
    : optimizer_(&optimizer), schedule_(std::move(schedule)) {
  std::vector<double> rates = detail::rates_of(optimizer);
  if (!rates.empty() && std::count(rates.begin(), rates.end(), 0.0) == std::ssize(rates)) {
    log(LogLevel::warning,
        "LrScheduler: all base rates are 0, so all rates will be 0; if another scheduler set them, "
        "use Chained or Sequential instead of two schedulers");
  }
  apply(0, std::move(rates));
}

void LrScheduler::step() { step(1); }

void LrScheduler::step(int64_t count) {
  detail::require_at_least(kScheduler, "the number of steps", count, 0);
  std::vector<double> rates = detail::rates_of(*optimizer_);
  if (rates.size() < base_lrs_.size()) {
    throw Error(ErrorDetails{.problem = "The optimizer has lost a param group",
                             .expected = c10::str("at least ", counted(base_lrs_.size(), "group")),
                             .got = c10::str(rates.size())});
  }
  // The rates of new groups are their base rates; those of the others are known.
  std::copy(base_lrs_.begin(), base_lrs_.end(), rates.begin());
  apply(last_step_ + count, std::move(rates));
}

void LrScheduler::step(const StepResult& result) {
  if (result.kind() == StepResult::Kind::submitted && !result.skipped()) step();
}

std::vector<double> LrScheduler::rates_at(int64_t step) const {
  detail::require_at_least(kScheduler, "the step", step, 0);
  return rates_at(step, base_lrs_);
}

std::vector<double> LrScheduler::rates_at(int64_t step, const std::vector<double>& base_lrs) const {
  std::vector<double> rates;
  for (std::size_t group = 0; group < base_lrs.size(); ++group) {
    rates.push_back(schedule_.rate(base_lrs[group], step, group));
  }
  return rates;
}

void LrScheduler::apply(int64_t step, std::vector<double> base_lrs) {
  if (base_lrs.size() != base_lrs_.size()) {
    schedule_.check_groups(base_lrs);
    if (schedule_.sets_momentum()) require_momentum(*optimizer_);
  }
  std::vector<double> rates = rates_at(step, base_lrs);
  std::vector<std::optional<double>> momenta;
  for (std::size_t group = 0; group < base_lrs.size(); ++group) {
    momenta.push_back(schedule_.momentum(step, group));
  }
  detail::set_rates(*optimizer_, rates);
  for (std::size_t group = 0; group < momenta.size(); ++group) {
    if (!momenta[group]) continue;
    detail::set_momentum(optimizer_->param_groups()[group].options(), *momenta[group]);
  }
  last_step_ = step;
  base_lrs_ = std::move(base_lrs);
  last_lrs_ = std::move(rates);
}

nlohmann::json LrScheduler::state_dict() const {
  return {{"last_epoch", last_step_}, {"base_lrs", base_lrs_}, {"_last_lr", last_lrs_}};
}

void LrScheduler::load_state_dict(const nlohmann::json& state) {
  detail::require_object(state, kScheduler);
  const std::size_t groups = optimizer_->param_groups().size();
  const int64_t step = detail::count_from(state, "last_epoch", kScheduler);
  std::vector<double> base_lrs = detail::rates_from(state, "base_lrs", kScheduler, groups);
  // Not needed, because the schedule determines the rates; but a state where it is wrong is not
  // ours.
  detail::rates_from(state, "_last_lr", kScheduler, groups);
  apply(step, std::move(base_lrs));
}

}  // namespace accelerant::optim
