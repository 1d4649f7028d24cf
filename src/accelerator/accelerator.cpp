#include "accelerant/accelerator/accelerator.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "accelerant/accelerator/utilities.h"
#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/error.h"
#include "accelerant/dist/collectives.h"
#include "accelerator/core.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"
#include "accelerator/prepared/scheduler_state.h"
#include "core/log_level.h"

namespace accelerant {

Accelerator::Accelerator(const AcceleratorOptions& options)
    : core_(detail::make_shared_for_process<detail::Core>(options)) {
  check_log_level();
}

Accelerator::~Accelerator() = default;
Accelerator::Accelerator(Accelerator&&) noexcept = default;
Accelerator& Accelerator::operator=(Accelerator&&) noexcept = default;

detail::Core& detail::core_of(const Accelerator& accelerator) { return *accelerator.core_; }

void Accelerator::note_division() const { core_->warnings.close(&WarningOptions::undivided_data); }

Epochs Accelerator::epochs(int64_t count) {
  if (count < 0) {
    throw Error(ErrorDetails{.problem = "The number of epochs is out of range",
                             .expected = "0 or more",
                             .got = c10::str(count)});
  }
  core_->checkpoints.finish_resume_if_all_are_there();
  const auto& progress = core_->progress;
  const int64_t first = progress->begin_epochs(count);
  if (first == count && count > 0 && progress->has_resumed_at_end()) {
    core_->finished_training.note_empty_epochs(*core_, count);
  }
  return {first, count, progress};
}

NoSyncScope Accelerator::no_sync(const ModelBase& model) {
  require_own(model);
  return NoSyncScope(model.state_);
}

AutocastScope Accelerator::autocast() const { return autocast(options().autocast); }

AutocastScope Accelerator::autocast(const AutocastSettings& settings) const {
  core_->counts.backwards_at_hidden_forward = core_->counts.backwards;
  return AutocastScope(core_->autocast_options(settings));
}

bool Accelerator::sync_gradients() const {
  const detail::Window* latest = core_->accumulation.latest();
  return latest != nullptr ? latest->complete : core_->outside_windows.syncs;
}

void Accelerator::set_sync_gradients(bool sync) { core_->outside_windows.syncs = sync; }

int64_t Accelerator::gradient_accumulation_steps() const {
  return *options().gradient_accumulation.steps;
}

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  if (steps < 1) {
    throw Error(ErrorDetails{.problem = "gradient_accumulation_steps is out of range",
                             .expected = "at least 1",
                             .got = c10::str(steps)});
  }
  core_->options.gradient_accumulation.steps = steps;
}

bool Accelerator::optimizer_step_was_skipped() const {
  const auto optimizers = core_->optimizers.all();
  return std::any_of(optimizers.begin(), optimizers.end(), [](const auto& optimizer) {
    return optimizer->last_step() && optimizer->last_step()->skipped();
  });
}

int64_t Accelerator::step() const {
  const detail::Window* latest = core_->accumulation.latest();
  if (latest == nullptr || (latest->complete && !latest->in_scope)) return 0;
  return latest->micro_steps;
}

int64_t Accelerator::updates_in(std::optional<int64_t> batches) const {
  if (!batches) {
    throw Error(ErrorDetails{.problem = "Cannot compute the updates per epoch",
                             .expected = "a loader that knows its length",
                             .got = "a stream without size()",
                             .hint = "compute the length of the schedule yourself"});
  }
  const int64_t steps = gradient_accumulation_steps();
  return options().gradient_accumulation.sync_with_dataloader ? (*batches + steps - 1) / steps
                                                              : *batches / steps;
}

c10::Device Accelerator::device() const { return *options().device; }
Precision Accelerator::mixed_precision() const { return *options().mixed_precision; }
GradScaler& Accelerator::scaler() { return core_->scaler; }
const dist::Environment& Accelerator::environment() const { return core_->environment; }
const AcceleratorOptions& Accelerator::options() const { return core_->options; }
const std::string& Accelerator::logging_dir() const { return options().project.logging_dir; }

void Accelerator::forget_everything() {
  core_->settle_schedules();
  for (const auto& model : core_->models.all()) model->forget();
  for (const auto& optimizer : core_->optimizers.all()) optimizer->forget();
  for (const auto& scheduler : core_->schedulers.all()) scheduler->forget();
  core_->models.clear();
  core_->optimizers.clear();
  core_->schedulers.clear();
  core_->loaders.clear();
  core_->accumulation.clear();
  core_->checkpoints.forget();
  clear_device_cache();
}

void Accelerator::print_line(const std::string& line) {
  std::fprintf(stdout, "%s\n", line.c_str());
  std::fflush(stdout);
}

void Accelerator::set_trigger() { core_->trigger = true; }

bool Accelerator::check_trigger() {
  return dist::any(*core_->world, std::exchange(core_->trigger, false), "check_trigger");
}

const dist::World& Accelerator::world() const { return *core_->world; }

dist::BatchRows Accelerator::current_rows() const {
  const data::LoaderState* loader = core_->loaders.innermost();
  if (loader == nullptr) return {};
  return {.here = loader->current_rows(),
          .total = loader->rows_to_keep(),
          .everywhere = loader->all_have_batch()};
}

std::string Accelerator::save_state(const SaveStateOptions& options) {
  return core_->checkpoints.save(std::nullopt, options);
}

std::string Accelerator::save_state(const std::string& folder, const SaveStateOptions& options) {
  return core_->checkpoints.save(folder, options);
}

SavedModel Accelerator::save_model(const ModelBase& model, const std::string& folder,
                                   const SaveModelOptions& options) const {
  require_own(model);
  const auto span = core_->timeline().span(Phase::save, "save_model");
  // The other processes wait until the main process has saved, and get its Error if it fails.
  auto saved = dist::main_process_first(world(), [&] {
    if (!is_main_process()) return SavedModel();
    core_->checkpoints.require_project_around(folder);
    return accelerant::save_model(model, folder, options);
  });
  nlohmann::json shared = {saved.files, saved.total_size};
  dist::broadcast_object(world(), shared);
  return {.files = shared[0].get<std::vector<std::string>>(),
          .total_size = shared[1].get<uint64_t>()};
}

void Accelerator::wait_for_saves() { core_->checkpoints.wait(); }

LoadedState Accelerator::load_state() { return core_->checkpoints.load(std::nullopt); }

LoadedState Accelerator::load_state(const std::string& folder) {
  return core_->checkpoints.load(folder);
}

void Accelerator::stop_if_preempted() { core_->stop_if_preempted(); }

std::optional<LoadedState> Accelerator::resumed() const { return core_->checkpoints.resumed(); }

StateHookHandle Accelerator::register_save_state_pre_hook(StateHook hook) {
  return core_->checkpoints.add_save_hook(std::move(hook));
}

StateHookHandle Accelerator::register_load_state_pre_hook(StateHook hook) {
  return core_->checkpoints.add_load_hook(std::move(hook));
}

void Accelerator::register_custom(detail::CustomObject object) {
  core_->checkpoints.add_custom(std::move(object));
}

void Accelerator::end_training() {
  core_->nonfinite_stop.settle();
  core_->checkpoints.wait();
  core_->settle_schedules();
  for (const auto& optimizer : core_->optimizers.all()) optimizer->sync();
  core_->world->close();
}

}  // namespace accelerant
