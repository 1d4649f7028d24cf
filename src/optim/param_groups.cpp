#include "optim/param_groups.h"

#include <c10/util/StringUtil.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"

namespace accelerant::optim::detail {
namespace {

// Calls f with the options as their real type, if they have a momentum.
template <class Options, class F>
bool visit_momentum(Options& options, F&& f) {
  const auto as = [&]<class Kind>(Kind*) {
    using Target = std::conditional_t<std::is_const_v<Options>, const Kind, Kind>;
    auto* const target = dynamic_cast<Target*>(&options);
    if (target != nullptr) f(*target);
    return target != nullptr;
  };
  return as(static_cast<torch::optim::SGDOptions*>(nullptr)) ||
         as(static_cast<torch::optim::RMSpropOptions*>(nullptr)) ||
         as(static_cast<torch::optim::AdamOptions*>(nullptr)) ||
         as(static_cast<torch::optim::AdamWOptions*>(nullptr));
}

const nlohmann::json& value_of(const nlohmann::json& state, const char* key, const char* owner) {
  const auto value = state.find(key);
  if (value != state.end()) return *value;
  throw Error(ErrorDetails{.problem = c10::str("The state of a ", owner, " is incomplete"),
                           .expected = c10::str("a key '", key, "'"),
                           .got = state.dump(),
                           .hint = "load a state written by state_dict()"});
}

[[noreturn]] void refuse(const nlohmann::json& value, const char* key, const char* owner,
                         const std::string& expected) {
  throw Error(
      ErrorDetails{.problem = c10::str("The state of a ", owner, " has an invalid '", key, "'"),
                   .expected = expected,
                   .got = value.dump()});
}

}  // namespace

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates) {
  auto& groups = optimizer.param_groups();
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(rates[i]);
}

bool has_momentum(const torch::optim::OptimizerOptions& options) {
  return visit_momentum(options, [](const auto&) {});
}

void set_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  visit_momentum(options, [&](auto& known) {
    if constexpr (requires { known.betas(); }) {
      known.betas({momentum, std::get<1>(known.betas())});
    } else {
      known.momentum(momentum);
    }
  });
}

void require_object(const nlohmann::json& state, const char* owner) {
  if (state.is_object()) return;
  throw Error(ErrorDetails{.problem = c10::str("The state of a ", owner, " has the wrong type"),
                           .expected = "a JSON object",
                           .got = state.dump()});
}

int64_t count_from(const nlohmann::json& state, const char* key, const char* owner) {
  const nlohmann::json& value = value_of(state, key, owner);
  constexpr int64_t kMost = int64_t{1} << 53;  // as for options: sums of a few cannot overflow
  if (value.is_number_integer() && value >= 0 && value <= kMost) return value.get<int64_t>();
  refuse(value, key, owner, c10::str("an integer from 0 to ", kMost));
}

double number_from(const nlohmann::json& state, const char* key, const char* owner) {
  const nlohmann::json& value = value_of(state, key, owner);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value == "inf") return kInfinity;
  if (value == "-inf") return -kInfinity;
  if (value.is_number() && !std::isnan(value.get<double>())) return value.get<double>();
  refuse(value, key, owner, "a number, \"inf\" or \"-inf\"");
}

std::vector<double> rates_from(const nlohmann::json& state, const char* key, const char* owner,
                               std::size_t groups) {
  const nlohmann::json& values = value_of(state, key, owner);
  if (!values.is_array()) refuse(values, key, owner, "a list of rates");
  if (values.size() != groups) {
    throw Error(ErrorDetails{
        .problem = c10::str("The state of a ", owner, " does not match this optimizer"),
        .expected = c10::str(groups, " values in '", key, "', one per param group"),
        .got = c10::str(values.size()),
        .hint = "create the same param groups before loading"});
  }
  std::vector<double> rates;
  for (const nlohmann::json& value : values) {
    if (!value.is_number() || !std::isfinite(value.get<double>())) {
      refuse(values, key, owner, "a list of finite numbers");
    }
    rates.push_back(value.get<double>());
  }
  return rates;
}

}  // namespace accelerant::optim::detail
