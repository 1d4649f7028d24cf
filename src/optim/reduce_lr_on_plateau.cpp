#include "accelerant/optim/lr_scheduler.h"

#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"
#include "optim/option_checks.h"
#include "optim/param_groups.h"

namespace accelerant::optim {
namespace {

using Options = ReduceLrOnPlateauOptions;

constexpr const char* kPlateau = "ReduceLrOnPlateau";

void validate(const Options& options) {
  if (!(options.factor >= 0 && options.factor < 1)) {
    throw Error("Factor should be < 1.0.",
                c10::str("expected a fraction of the rate, at least 0; got ", options.factor));
  }
  detail::require_at_least(kPlateau, "patience", options.patience, 0);
  detail::require_not_negative(kPlateau, "threshold", options.threshold);
  detail::require_at_least(kPlateau, "cooldown", options.cooldown, 0);
  if (options.min_lr.empty()) {
    detail::refuse_option(kPlateau, "min_lr", "a number, or one per group", "nothing");
  }
  for (const double rate : options.min_lr.values()) {
    detail::require_not_negative(kPlateau, "min_lr", rate);
  }
  detail::require_not_negative(kPlateau, "eps", options.eps);
}

double worst(Options::Mode mode) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return mode == Options::Mode::min ? kInfinity : -kInfinity;
}

}  // namespace

ReduceLrOnPlateau::ReduceLrOnPlateau(torch::optim::Optimizer& optimizer, const Options& options)
    : optimizer_(&optimizer),
      options_(options),
      best_(worst(options.mode)),
      last_lrs_(detail::rates_of(optimizer)) {
  validate(options);
  options.min_lr.check_size(last_lrs_.size(), "ReduceLrOnPlateau: min_lr");
}

void ReduceLrOnPlateau::step(double metric) {
  options_.min_lr.check_size(optimizer_->param_groups().size(), "ReduceLrOnPlateau: min_lr");
  ++last_step_;
  if (is_better(metric)) {
    best_ = metric;
    bad_steps_ = 0;
  } else {
    ++bad_steps_;
  }
  if (cooldown_left_ > 0) {
    --cooldown_left_;
    bad_steps_ = 0;
  }
  if (bad_steps_ > options_.patience) {
    reduce();
    cooldown_left_ = options_.cooldown;
    bad_steps_ = 0;
  }
  last_lrs_ = detail::rates_of(*optimizer_);
}

bool ReduceLrOnPlateau::is_better(double metric) const {
  const bool relative = options_.threshold_mode == Options::ThresholdMode::relative;
  if (options_.mode == Options::Mode::min) {
    return metric < (relative ? best_ * (1.0 - options_.threshold) : best_ - options_.threshold);
  }
  return metric > (relative ? best_ * (options_.threshold + 1.0) : best_ + options_.threshold);
}

void ReduceLrOnPlateau::reduce() {
  std::vector<double> rates = detail::rates_of(*optimizer_);
  for (std::size_t group = 0; group < rates.size(); ++group) {
    const double lower = std::max(rates[group] * options_.factor, options_.min_lr.of(group));
    if (rates[group] - lower > options_.eps) rates[group] = lower;
  }
  detail::set_rates(*optimizer_, rates);
}

nlohmann::json ReduceLrOnPlateau::state_dict() const {
  nlohmann::json best = best_;
  if (std::isinf(best_)) best = best_ > 0 ? "inf" : "-inf";
  return {{"best", best},
          {"num_bad_epochs", bad_steps_},
          {"cooldown_counter", cooldown_left_},
          {"last_epoch", last_step_},
          {"_last_lr", last_lrs_}};
}

void ReduceLrOnPlateau::load_state_dict(const nlohmann::json& state) {
  detail::require_object(state, kPlateau);
  const std::size_t groups = optimizer_->param_groups().size();
  const double best = detail::number_from(state, "best", kPlateau);
  const int64_t bad_steps = detail::count_from(state, "num_bad_epochs", kPlateau);
  const int64_t cooldown_left = detail::count_from(state, "cooldown_counter", kPlateau);
  const int64_t last_step = detail::count_from(state, "last_epoch", kPlateau);
  std::vector<double> rates = detail::rates_from(state, "_last_lr", kPlateau, groups);
  detail::set_rates(*optimizer_, rates);
  best_ = best;
  bad_steps_ = bad_steps;
  cooldown_left_ = cooldown_left;
  last_step_ = last_step;
  last_lrs_ = std::move(rates);
}

}  // namespace accelerant::optim
