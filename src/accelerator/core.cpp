#include "accelerator/core.h"

#include <algorithm>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/dist/collectives.h"
#include "accelerator/options/performance.h"
#include "accelerator/options/resolve_options.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"
#include "accelerator/prepared/optimizer_tensors.h"
#include "accelerator/prepared/scheduler_state.h"
#include "accelerator/warnings/empty_loop.h"
#include "accelerator/warnings/slow_precision.h"
#include "amp/gradient_guard.h"
#include "compat/autograd_threads.h"
#include "dist/preemption.h"

namespace accelerant::detail {
namespace {

// Without loss scaling, a scaler whose scale is always 1 guards the steps.
GradScalerOptions scaler_options(const AcceleratorOptions& options) {
  if (options.scaler.enabled || *options.nonfinite == Nonfinite::step) return options.scaler;
  return {.device = options.scaler.device, .init_scale = 1.0, .dynamic = false};
}

}  // namespace

Core::Core(AcceleratorOptions given)
    : environment(dist::Environment::detect()),
      options(resolve(std::move(given), environment)),
      scaler(scaler_options(options)),
      warnings(options.warnings) {
  GuardAccess::set_role(
      scaler, {.only_checks = only_guards(), .stops = *options.nonfinite == Nonfinite::stop});
  // Fail here rather than in the first forward.
  if (const auto autocast = autocast_options(options.autocast)) AutocastGuard{*autocast};
  if (environment.use_distributed()) {
    environment.distributed_type = options.device->is_cpu() ? dist::DistributedType::multi_cpu
                                                            : dist::DistributedType::multi_gpu;
  }
  if (options.device->is_cpu()) warn_if_slow(warnings, *options.mixed_precision);
  apply(options.performance, environment);
  compat::let_forked_children_exit();
  world = dist::World::join(environment, options.process_group, *options.device);
  if (*options.project.save_on_preemption) {
    preemption.signals = std::make_unique<dist::Preemption>(*world);
  }
  if (world->is_connected()) loaders.channel = data::batch_channel(world);
  if (world->is_connected() && scaler.is_enabled()) {
    // Exchanged gradients overflow in all processes at once. But not all gradients are exchanged:
    // not those of loose tensors, nor those of models that are not always synchronised.
    scaler.set_found_inf_reduction([this](at::Tensor& found_inf) {
      dist::all_reduce_(*world, found_inf, dist::Reduction::max);
    });
  }
}

Core::~Core() {
  try {
    finished_training.say_if_nothing_was_done(*this);
  } catch (...) {  // thrown by the program's own log handler: nobody is left to be told
  }
}

WindowRules Core::window_rules() const {
  return {.steps = *options.gradient_accumulation.steps,
          .sync_with_dataloader = options.gradient_accumulation.sync_with_dataloader};
}

std::optional<AutocastOptions> Core::autocast_options(const AutocastSettings& settings) const {
  if (*options.mixed_precision == Precision::no) return std::nullopt;
  return AutocastOptions{
      .device_type = options.device->type(),
      .dtype = *options.mixed_precision == Precision::fp16 ? at::kHalf : at::kBFloat16,
      .enabled = settings.enabled,
      .cache_enabled = settings.cache_enabled};
}

MeanOverProcesses Core::mean_over_processes() const {
  if (!world->is_connected()) return {};
  return [this](const at::Tensor& number) {
    if (open_scopes.join) {
      throw Error(ErrorDetails{
          .problem = "backward(loss_sum, num_items) cannot be used inside join_uneven_inputs()",
          .expected = "all processes in the loop, so that they can add up their items",
          .got = "a loop that some processes may have left",
          .hint = "use backward(loss), or even batches (data_loader.even_batches)"});
    }
    at::Tensor mean = number.clone();
    dist::all_reduce_(*world, mean, dist::Reduction::mean);
    return mean;
  };
}

void Core::settle_schedules() const {
  for (const auto& scheduler : schedulers.all()) scheduler->settle();
}

std::optional<RateChoice> Core::rate_choice_for(const torch::optim::Optimizer& optimizer) const {
  std::vector<std::shared_ptr<SchedulerState>> undecided;
  for (const auto& scheduler : schedulers.all()) {
    if (!scheduler->concerns(optimizer)) continue;
    scheduler->settle_known();
    if (scheduler->is_undecided()) undecided.push_back(scheduler);
  }
  if (undecided.size() == 1) {
    if (auto choice = undecided.front()->rate_choice()) return choice;
  }
  for (const auto& scheduler : undecided) scheduler->settle();
  return std::nullopt;
}

void Core::note_loop(data::LoaderState& loader, bool active) {
  if (active) {
    warn_if_empty(warnings, loader);
    checkpoints.begin_loop(loader);
    loaders.begin_loop(loader);
    progress->begin_loop(loader, counts.backwards);
  } else {
    loaders.end_loop(loader);
    progress->end_loop(loader, counts.backwards);
  }
}

void Core::stop_if_preempted() {
  if (!preemption.signals || counts.updates == preemption.updates_seen) return;
  preemption.updates_seen = counts.updates;
  if (!preemption.signals->at_boundary()) return;
  try {
    checkpoints.wait();
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());  // an earlier save failed; this one matters all the more
  }
  throw Preempted(preemption.signals->signal(), checkpoints.save(std::nullopt, {}));
}

std::vector<std::shared_ptr<OptimizerState>> Core::owners_of(
    const std::vector<at::Tensor>& tensors) const {
  auto owners = optimizers.all();
  std::erase_if(owners, [&](const auto& optimizer) { return !optimizer->owns_any_of(tensors); });
  return owners;
}

bool Core::any_parameter(const std::function<bool(const at::Tensor&)>& f) const {
  for (const auto& optimizer : optimizers.all()) {
    if (detail::any_parameter(optimizer->optimizer(), f)) return true;
  }
  for (const auto& model : models.all()) {
    if (std::ranges::any_of(model->parameters(), f)) return true;
  }
  return false;
}

std::shared_ptr<Core> require_core(const std::weak_ptr<Core>& core) {
  if (auto alive = core.lock()) return alive;
  throw Error(
      ErrorDetails{.problem = "A prepared object outlived its Accelerator",
                   .expected = "an Accelerator that outlives the use of its objects",
                   .got = "an Accelerator that was destroyed, or whose free_memory() was called",
                   .hint = "prepare the object again"});
}

void refuse_empty_handle(const char* what) {
  throw Error(ErrorDetails{.problem = std::string("An empty ") + what + " was used",
                           .expected = "a handle returned by prepare()",
                           .got = "a default-constructed or emptied handle"});
}

}  // namespace accelerant::detail
