// Rates and momentum of an optimizer's param groups, and how they are read from a saved state.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
}  // namespace torch::optim

namespace accelerant::optim::detail {

std::vector<double> rates_of(const torch::optim::Optimizer& optimizer);
void set_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);

// The momentum of SGD and RMSprop, or the first beta of Adam and AdamW; other options have none.
bool has_momentum(const torch::optim::OptimizerOptions& options);
void set_momentum(torch::optim::OptimizerOptions& options, double momentum);

// Checked values of a scheduler's state. `owner` names the scheduler in messages.
void require_object(const nlohmann::json& state, const char* owner);
int64_t count_from(const nlohmann::json& state, const char* key, const char* owner);
double number_from(const nlohmann::json& state, const char* key, const char* owner);
std::vector<double> rates_from(const nlohmann::json& state, const char* key, const char* owner,
                               std::size_t groups);

}  // namespace accelerant::optim::detail
