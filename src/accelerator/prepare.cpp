#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "accelerant/accelerator/accelerator.h"
#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/dist/collectives.h"
#include "accelerator/core.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"
#include "accelerator/prepared/optimizer_tensors.h"
#include "accelerator/prepared/scheduler_state.h"
#include "dist/world_access.h"

namespace accelerant {
namespace {

// A pointer that owns nothing.
template <class T>
std::shared_ptr<T> borrowed(T& object) {
  return std::shared_ptr<T>(std::shared_ptr<void>(), &object);
}

std::shared_ptr<detail::ModelState> register_access(const std::shared_ptr<detail::Core>& core,
                                                    std::unique_ptr<detail::ModuleAccess> module,
                                                    const PrepareModelOptions& options) {
  for (const auto& model : core->models.all()) {
    if (model->module().identity() == module->identity()) return model;
  }
  auto state = std::make_shared<detail::ModelState>(core, std::move(module), options);
  core->models.add(state);
  // On a CPU the slower modules cost almost nothing.
  if (core->options.device->is_cuda()) {
    const std::string advice = state->module().advice();
    if (!advice.empty()) log_on_main(LogLevel::info, advice);
  }
  core->checkpoints.resume_prepared();
  return state;
}

std::shared_ptr<detail::SchedulerState> register_schedule(
    const std::shared_ptr<detail::Core>& core, std::unique_ptr<detail::ScheduleAccess> schedule) {
  for (const auto& scheduler : core->schedulers.all()) {
    if (scheduler->schedule().identity() == schedule->identity()) return scheduler;
  }
  auto state = std::make_shared<detail::SchedulerState>(core, std::move(schedule));
  core->schedulers.add(state);
  core->checkpoints.resume_prepared();
  return state;
}

std::string name_of(const detail::Core& core, const at::Tensor& parameter) {
  for (const auto& model : core.models.all()) {
    for (const auto& item : model->module().named_parameters()) {
      if (item.value().is_same(parameter)) return "'" + item.key() + "'";
    }
  }
  return c10::str("a parameter of shape ", parameter.sizes());
}

void refuse_shared_parameters(const detail::Core& core, torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  detail::for_each_parameter(optimizer,
                             [&](const at::Tensor& parameter) { parameters.push_back(parameter); });
  const auto owners = core.owners_of(parameters);
  if (owners.empty()) return;
  const auto shared = std::ranges::find_if(
      parameters, [&](const at::Tensor& parameter) { return owners.front()->owns(parameter); });
  throw Error(ErrorDetails{
      .problem = "Two optimizers would step the same parameter",
      .expected = "each parameter in one prepared optimizer",
      .got = name_of(core, *shared) + " in two optimizers",
      .hint = "give each optimizer its own parameters; if one follows the other in time, let go of "
              "the first handle, or allow it with prepare_optimizer(optimizer, "
              "{.shared_parameters = true})"});
}

[[noreturn]] void refuse_empty_pointer(const char* what) {
  throw Error(ErrorDetails{.problem = std::string("prepare() got an empty ") + what,
                           .expected = "a non-null pointer",
                           .got = "nullptr"});
}

}  // namespace

std::shared_ptr<detail::ModelState> Accelerator::register_module(
    std::shared_ptr<torch::nn::Module> module, const PrepareModelOptions& options) {
  if (!module) refuse_empty_pointer("model");
  return register_access(core_, detail::access_to(std::move(module)), options);
}

std::shared_ptr<detail::ModelState> Accelerator::register_module(
    torch::jit::Module& module, const PrepareModelOptions& options) {
  return register_access(core_, detail::access_to(module), options);
}

Optimizer Accelerator::prepare_optimizer(torch::optim::Optimizer& optimizer,
                                         const PrepareOptimizerOptions& options) {
  return prepare_optimizer(borrowed(optimizer), options);
}

Optimizer Accelerator::prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                         const PrepareOptimizerOptions& options) {
  if (!optimizer) refuse_empty_pointer("optimizer");
  for (const auto& known : core_->optimizers.all()) {
    if (&known->optimizer() == optimizer.get()) return Optimizer(known);
  }
  if (!options.shared_parameters) refuse_shared_parameters(*core_, *optimizer);
  auto state = std::make_shared<detail::OptimizerState>(core_, std::move(optimizer), options);
  core_->optimizers.add(state);
  core_->checkpoints.resume_prepared();
  return Optimizer(std::move(state));
}

Optimizer Accelerator::prepare_optimizer(const Optimizer& optimizer,
                                         const PrepareOptimizerOptions&) {
  require_own(optimizer.state().core());
  return optimizer;
}

Scheduler Accelerator::prepare_scheduler(optim::LrScheduler& scheduler) {
  return Scheduler(register_schedule(core_, detail::access_to(borrowed(scheduler))));
}

Scheduler Accelerator::prepare_scheduler(optim::LrScheduler&& scheduler) {
  return Scheduler(register_schedule(
      core_, detail::access_to(std::make_shared<optim::LrScheduler>(std::move(scheduler)))));
}

Scheduler Accelerator::prepare_scheduler(optim::ReduceLrOnPlateau& scheduler) {
  return Scheduler(register_schedule(core_, detail::access_to(borrowed(scheduler))));
}

Scheduler Accelerator::prepare_scheduler(optim::ReduceLrOnPlateau&& scheduler) {
  return Scheduler(register_schedule(
      core_, detail::access_to(std::make_shared<optim::ReduceLrOnPlateau>(std::move(scheduler)))));
}

Scheduler Accelerator::prepare_scheduler(torch::optim::LRScheduler& scheduler) {
  return Scheduler(register_schedule(core_, detail::access_to(scheduler)));
}

Scheduler Accelerator::prepare_scheduler(const Scheduler& scheduler) {
  require_own(scheduler.state().core());
  return scheduler;
}

void Accelerator::require_own(const ModelBase& model) const { require_own(model.state().core()); }

void Accelerator::require_own(const std::shared_ptr<detail::Core>& core) const {
  if (core == core_) return;
  throw Error(ErrorDetails{.problem = "An object was prepared by another Accelerator",
                           .expected = "an original, or an object that this Accelerator prepared",
                           .got = "a handle of another Accelerator"});
}

data::Placement Accelerator::placement() const {
  const DataLoaderOptions& given = options().data_loader;
  return {.device = device(),
          .move = options().device_placement,
          .non_blocking = given.non_blocking,
          .rank = process_index(),
          .num_processes = num_processes(),
          .split_batches = given.split_batches,
          .even_batches = given.even_batches,
          .dispatch_batches = given.dispatch_batches,
          .channel = core_->loaders.channel,
          .seed = given.seed,
          .workers = given.workers,
          .prefetch = given.prefetch,
          .on_loop =
              [weak = std::weak_ptr<detail::Core>(core_)](data::LoaderState& loader, bool active) {
                if (const auto core = weak.lock()) core->note_loop(loader, active);
              },
          .on_batch_end =
              [weak = std::weak_ptr<detail::Core>(core_)](data::LoaderState& loader) {
                const auto core = weak.lock();
                // Do not stop in an evaluation inside the training: it is not a place to resume
                // from.
                if (core && core->progress->is_training_with(loader, core->counts.backwards)) {
                  core->stop_if_preempted();
                }
              },
          .timeline = dist::WorldAccess::timeline(*core_->world)};
}

// Processes must read the data in the same order, so all use the seed of the main process.
data::Placement Accelerator::placement_of(const data::LoaderHandle& loader) const {
  data::Placement result = placement();
  if (!core_->world->is_connected()) return result;
  result.channel_line = core_->loaders.next_channel_line++;
  nlohmann::json seed = result.seed.value_or(loader.seed());
  dist::broadcast_object(*core_->world, seed);
  result.seed = seed.get<uint64_t>();
  return result;
}

const std::any* Accelerator::find_loader(const void* original) const {
  return core_->loaders.find(original);
}

void Accelerator::add_loader(std::shared_ptr<const void> original,
                             const std::shared_ptr<data::LoaderState>& state, std::any handle) {
  core_->loaders.add(std::move(original), state, std::move(handle));
  core_->checkpoints.resume_prepared();
}

}  // namespace accelerant
