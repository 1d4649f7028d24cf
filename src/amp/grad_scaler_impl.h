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
#include "amp/gradient_guard.h"
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
  // An update was queued that ends an iteration with these checks.
  void note_update(std::shared_ptr<const std::vector<detail::GradientChecks>> checks);
  void begin(c10::Device device);
  kernels::UpdateRule update_rule() const;
  // What gradients are multiplied by.
  const at::Tensor& gradient_factor() const;
  // The flag that decides about a step: its own, and that of a stop.
  at::Tensor found_inf_of(const detail::CheckedOptimizer& optimizer_state) const;
  void add_to(OverflowReport& report, const detail::GradientChecks& checks) const;
  std::string name_of(const detail::CheckedParameter& checked) const;

  GradScalerOptions options;
  kernels::ScaleState initial = detail::initial_state(options);  // until there is a device state
  std::unique_ptr<detail::DeviceScaleState> state;               // created by the first scale()
  // In the order of first use since update(); a deque keeps references valid.
  std::deque<detail::CheckedOptimizer> optimizer_states;
  // Of the iteration ended by the last update(); null before the first.
  std::shared_ptr<const std::vector<detail::GradientChecks>> ended_checks;
  std::unordered_map<c10::TensorImpl*,
                     std::pair<c10::weak_intrusive_ptr<c10::TensorImpl>, std::string>>
      names;
  int64_t iteration = 0;  // incremented when the scale may have changed
  std::size_t names_before_pruning =
      1024;  // above this, names of parameters that are gone are removed
  std::function<void(at::Tensor&)> reduction;

  detail::GuardRole role;
  int64_t queued_updates = 0;  // as ScaleState::updates will be once the device is done
  // If it stops: the latest iterations, the oldest first. The host may learn late which of them it
  // was.
  std::deque<detail::CheckedIteration> recent;
};

}  // namespace accelerant
