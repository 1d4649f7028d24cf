#include "accelerator/capture/graphed_optimizer.h"

#include "accelerator/capture/step_capture.h"
#include "accelerator/core.h"
#include "accelerator/prepared/optimizer_tensors.h"
#include "optim/fused_step_replay.h"

namespace accelerant::detail {
namespace {

// nullopt if the optimizer uses its own step, or has not stepped yet.
std::optional<FusedStepReplay> replay_of(OptimizerState& optimizer) {
  FusedStep* const fused = optimizer.stepping().fused_so_far();
  return fused != nullptr ? std::optional<FusedStepReplay>(*fused) : std::nullopt;
}

}  // namespace

void GraphedOptimizer::refuse_step_on_host() const {
  const StepCapture& capture = optimizer_.core()->capture;
  if (!capture.needs_steps_on_device() || optimizer_.stepping().is_on_device()) return;
  capture.refuse(
      "an optimizer steps on the host, because fused kernels do not support it or are turned off");
}

uint64_t GraphedOptimizer::fingerprint() const {
  auto replay = replay_of(optimizer_);
  return replay ? replay->fingerprint() : 0;
}

void GraphedOptimizer::prepare_replay() const {
  const auto core = optimizer_.core();
  auto replay = replay_of(optimizer_);
  if (!replay) return core->settle_schedules();
  const auto choice = core->rate_choice_for(optimizer_.optimizer());
  choice ? replay->prepare(*choice) : replay->prepare();
}

void GraphedOptimizer::begin_capture() const {
  if (auto replay = replay_of(optimizer_)) replay->reserve_for_capture();
}

std::vector<at::Tensor> GraphedOptimizer::end_capture() const {
  optimizer_.stepping().discard();
  auto replay = replay_of(optimizer_);
  return replay ? replay->take_memory_of_graphs() : std::vector<at::Tensor>();
}

void GraphedOptimizer::note_gradients_written() const {
  for_each_parameter(optimizer_.optimizer(), [](const at::Tensor& parameter) {
    if (parameter.grad().defined()) parameter.grad().unsafeGetTensorImpl()->bump_version();
  });
}

void GraphedOptimizer::note_parameters_written() const {
  if (auto replay = replay_of(optimizer_)) return replay->note_replayed();
  for_each_parameter(optimizer_.optimizer(), [](const at::Tensor& parameter) {
    parameter.unsafeGetTensorImpl()->bump_version();
  });
}

}  // namespace accelerant::detail
