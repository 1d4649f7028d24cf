// What a GradScaler holds: the scale on the device, and what has happened to each optimizer since
// the last update().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerant/amp/grad_scaler.h"
#include "accelerant/core/error.h"
#include "amp/grad_scaler_rules.h"
#include "amp/gradient_checks.h"
#include "amp/scale_state.h"

namespace accelerant {
namespace detail {

// What has happened to one optimizer since the last update().
struct CheckedOptimizer {
  enum class Stage { ready, unscaled, stepped };

  const torch::optim::Optimizer* optimizer;  // only for comparison; it may be gone before update()
  Stage stage = Stage::ready;
  GradientChecks checks = {};
  at::Tensor reduced_flag = {};  // the flag of all processes, if there is a reduction

  std::vector<at::Tensor> flags() const {
    return reduced_flag.defined() ? std::vector<at::Tensor>{reduced_flag} : checks.flags();
  }

  void require_flags() const {
    if (!flags().empty()) return;
    throw Error(
        "No inf checks were recorded for this optimizer.",
        "none of its parameters has a gradient; run backward before step(), with a loss that "
        "depends on them");
  }
};

}  // namespace detail

struct GradScaler::Impl {
  explicit Impl(const GradScalerOptions& given) : options(given) {}

  detail::DeviceScaleState& require_state(const char* caller);
  detail::CheckedOptimizer& state_of(const torch::optim::Optimizer& optimizer);
  detail::CheckedOptimizer& state_before_step(const torch::optim::Optimizer& optimizer);
  void refuse_shared_parameters(const torch::optim::Optimizer& optimizer) const;
  void check(torch::optim::Optimizer& optimizer, detail::CheckedOptimizer& optimizer_state,
             kernels::Writing writing);
  void check_changed(torch::optim::Optimizer& optimizer, detail::CheckedOptimizer& optimizer_state);
  void reduce(detail::CheckedOptimizer& optimizer_state) const;
  StepResult step_on_device(torch::optim::Optimizer& optimizer, AmpOptimizer& amp_optimizer,
                            detail::CheckedOptimizer& optimizer_state);
  void end_iteration();
  std::string name_of(const detail::CheckedParameter& checked) const;

  GradScalerOptions options;
  kernels::ScaleState initial = detail::initial_state(options);  // until there is a device state
  std::unique_ptr<detail::DeviceScaleState> state;               // created by the first scale()
  // In the order of first use since update(); a deque keeps references valid.
  std::deque<detail::CheckedOptimizer> optimizer_states;
  std::vector<detail::GradientChecks> ended_checks;  // of the iteration ended by the last update()
  std::unordered_map<c10::TensorImpl*,
                     std::pair<c10::weak_intrusive_ptr<c10::TensorImpl>, std::string>>
      names;
  int64_t iteration = 0;  // incremented when the scale may have changed
  std::size_t names_before_pruning =
      1024;  // above this, names of parameters that are gone are removed
  std::function<void(at::Tensor&)> reduction;
};

}  // namespace accelerant
