// On its own, because the headers of the optimizers bring all of torch::nn::Module.
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "optim/param_groups.h"

namespace accelerant::optim::detail {
namespace {

// Calls f with the options as what they are, if they have a momentum.
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

}  // namespace

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

}  // namespace accelerant::optim::detail
