// Loads a checkpoint: checks that it fits, and restores the objects.
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerator/core.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"
#include "accelerator/prepared/optimizer_tensors.h"
#include "accelerator/prepared/scheduler_state.h"
#include "accelerator/state/agreed.h"
#include "accelerator/state/checkpoints.h"
#include "accelerator/state/schedule_shape.h"
#include "accelerator/state/state_source.h"
#include "accelerator/state/window_state.h"
#include "amp/gradient_guard.h"
#include "checkpoint/model_loading.h"
#include "core/stable_hash.h"
#include "optim/optimizer_loading.h"
#include "tensor/random_state.h"
#include "tensor/state_prefix.h"

namespace accelerant::detail {
namespace {

using nlohmann::json;

constexpr const char* kOtherModelHint =
    "Load it into the model that it was saved from; to train another one, set another project.dir, "
    "or project.resume = \"no\".";

template <class T>
std::set<int64_t> numbers_of(const std::vector<T>& numbered) {
  std::set<int64_t> numbers;
  for (const T& each : numbered) numbers.insert(each.number);
  return numbers;
}

void require_same(const std::string& path, const char* what, const std::set<int64_t>& saved,
                  const std::set<int64_t>& prepared) {
  if (saved == prepared) return;
  std::string got = std::to_string(prepared.size()) + " prepared";
  if (saved.size() == prepared.size()) got += ", but the order of preparation differs";
  throw Error(ErrorDetails{
      .problem = path + " does not match the program",
      .expected = c10::str("as many ", what, " as in the checkpoint (", saved.size(), ")"),
      .got = got,
      .hint = "prepare the same objects in the same order"});
}

template <class Range>
std::string list_of(const Range& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text.empty() ? "none" : text;
}

// Whether the models that own the optimizer's parameters are prepared, so that the parameters have
// names.
bool has_its_models(torch::optim::Optimizer& optimizer, const optim::ParameterNames& names,
                    const std::optional<std::vector<std::string>>& saved) {
  return !any_parameter(optimizer, [&](const at::Tensor& parameter) {
    const std::string* name = names.find(parameter);
    return name == nullptr || (saved && std::ranges::find(*saved, *name) == saved->end());
  });
}

// Half of a sum of gradients is useless to a different number of processes.
void require_whole_windows(const StateSource& source, int64_t num_processes) {
  if (source.num_processes() == num_processes) return;
  const json values = *source.rank(0).values;
  if (!values.contains("windows") || !has_half_windows(values)) return;
  throw Error(ErrorDetails{
      .problem = source.path() + " was saved in the middle of accumulated gradients",
      .expected = c10::str("as many processes as saved it (", source.num_processes(),
                           "), since each holds a part of the gradients"),
      .got = c10::str(num_processes),
      .hint = "use as many processes, or load a checkpoint that was saved after an update"});
}

void load_parallel(Core& core, const NamedState& state) {
  const at::NoGradGuard no_grad;
  const json& saved = state.values->at("parallel");
  for (const auto& [number, model] : core.models.numbered()) {
    const auto found = saved.find(std::to_string(number));
    if (model->parallel() == nullptr || found == saved.end()) continue;
    model->parallel()->load_state_dict(
        {.values = *found, .tensors = with_prefix(state.tensors, parallel_prefix(number))});
    const StateDict buffers = model->module().named_buffers();
    for (const auto& item : with_prefix(state.tensors, buffers_prefix(number))) {
      if (const at::Tensor* buffer = buffers.find(item.key())) buffer->copy_(item.value());
    }
  }
}

LoadedState summary_of(const StateSource& source) {
  const auto progress = source.progress();
  return {.path = source.path(),
          .epoch = progress ? progress->at("epoch").get<int64_t>() : 0,
          .updates = source.updates()};
}

// Gives each process its own stream of random numbers, always the same for the same checkpoint.
void derive_random_numbers(const StateDict& random, int64_t rank) {
  std::string text = std::to_string(rank);
  if (const at::Tensor* generator = random.find("cpu")) {
    text.append(static_cast<const char*>(generator->const_data_ptr()), generator->nbytes());
  }
  at::manual_seed(stable_hash(text));
}

}  // namespace

void Checkpoints::require_same_objects(const StateSource& source) const {
  const StateSource::Contents saved = source.contents();
  require_same(source.path(), "models", saved.models, numbers_of(core_.models.numbered()));
  require_same(source.path(), "optimizers", saved.optimizers,
               numbers_of(core_.optimizers.numbered()));
  require_same(source.path(), "schedules", saved.schedulers,
               numbers_of(core_.schedulers.numbered()));
  // Loaders need not match: those of an evaluation come and go.
  if (!saved.custom) return;
  std::set<std::string> registered;
  for (const CustomObject& object : custom_) registered.insert(object.name);
  if (registered == *saved.custom) return;
  throw Error(ErrorDetails{
      .problem = source.path() + " does not match the program",
      .expected = "these objects registered for checkpointing: " + list_of(*saved.custom),
      .got = list_of(registered)});
}

LoadedState Checkpoints::load(const std::optional<std::string>& folder) {
  const auto span = core_.timeline().span("load_state", "load");
  wait();
  looked_for_resume_ = true;
  begins_anew_ = false;
  resume_.reset();
  Resume loading{.source = find_source(folder)};
  const StateSource& source = *loading.source;
  in_all(*core_.world, [&] {
    require_same_objects(source);
    require_whole_windows(source, core_.environment.num_processes);
    load_objects(loading, /*all=*/true);
  });
  in_all(*core_.world, [&] {
    for (const CustomObject& object : custom_) load_custom(source, object);
    load_trainer(source);
    load_rank(source, own_part(source));
  });
  return summary_of(source);
}

std::vector<Checkpoints::Change> Checkpoints::changes_of_models(Resume& resume) const {
  const StateSource& source = *resume.source;
  const std::set<int64_t> saved = source.contents().models;
  std::vector<int64_t> numbers;
  std::vector<StateDict> states;
  for (const auto& [number, model] : core_.models.numbered()) {
    if (!saved.contains(number) || !resume.models.insert(number).second) continue;
    numbers.push_back(number);
    states.push_back(model->module().state_dict());
  }
  if (numbers.empty()) return {};
  std::vector<std::size_t> sizes;
  for (const StateDict& state : states) sizes.push_back(state.size());
  for (const auto& hook : load_hooks_) {
    if (*hook) (*hook)(states, source.path());
  }
  std::vector<Change> changes;
  for (std::size_t i = 0; i < std::min(numbers.size(), states.size()); ++i) {
    if (states[i].is_empty() && sizes[i] > 0) continue;
    // The file may contain tensors that a hook has removed.
    const LoadModelOptions options{.strict = states[i].size() == sizes[i]};
    changes.push_back({checkpoint::prepare_loading(states[i], source.model_path(numbers[i]),
                                                   options, kOtherModelHint)
                           .load});
  }
  return changes;
}

// Checks everything first, then changes it.
void Checkpoints::load_objects(Resume& resume, bool all) {
  ++loads_;
  Resume loaded = resume;
  const StateSource& source = *resume.source;
  const StateSource::Contents saved = source.contents();
  std::vector<Change> changes;
  std::vector<std::pair<std::shared_ptr<SchedulerState>, json>> schedules;
  for (const auto& [number, scheduler] : core_.schedulers.numbered()) {
    if (!saved.schedulers.contains(number) || !loaded.schedulers.insert(number).second) continue;
    const auto set = [scheduler = scheduler](const json& state) {
      scheduler->schedule().load_state_dict(state);
    };
    const json before = scheduler->schedule().state_dict();
    schedules.emplace_back(scheduler, source.scheduler(number, before));
    changes.push_back(
        {[set, state = schedules.back().second] { set(state); }, [set, before] { set(before); }});
  }
  for (const auto& [number, loader] : core_.loaders.living()) {
    if (!saved.loaders.contains(number) || !loaded.loaders.insert(number).second) continue;
    const auto set = [loader = loader](const json& state) {
      loader->load_state_dict(state);
      if (state.contains("trained")) loader->skip_loop();
    };
    changes.push_back({[set, state = source.loader(number)] { set(state); },
                       [set, before = loader->state_dict()] { set(before); }});
  }
  const auto models = changes_of_models(loaded);
  changes.insert(changes.end(), models.begin(), models.end());
  const optim::ParameterNames names = names_of_parameters();
  for (const auto& [number, optimizer] : core_.optimizers.numbered()) {
    if (!saved.optimizers.contains(number) || loaded.optimizers.contains(number)) continue;
    torch::optim::Optimizer& target = optimizer->optimizer();
    if (!all && !has_its_models(target, names, source.parameters_of_optimizer(number))) continue;
    loaded.optimizers.insert(number);
    changes.push_back(
        {optim::prepare_loading(target, names, source.optimizer(number, target, names))});
  }
  for (std::size_t i = 0; i < changes.size(); ++i) {
    try {
      changes[i].apply();
    } catch (...) {
      while (i-- > 0) {
        if (changes[i].undo) changes[i].undo();
      }
      throw;
    }
  }
  resume = std::move(loaded);
  for (const auto& optimizer : core_.optimizers.all()) optimizer->restart_watch();
  for (const auto& [scheduler, state] : schedules) {
    if (const auto text = why_other_curve(scheduler->schedule(), state, source.num_processes(),
                                          core_.environment.num_processes)) {
      core_.warnings.say(&WarningOptions::changed_schedule, *text);
    }
  }
}

void Checkpoints::load_custom(const StateSource& source, const CustomObject& object) const {
  const auto saved = source.contents().custom;
  if (!saved) return;
  if (!saved->contains(object.name)) {
    throw Error(ErrorDetails{.problem = source.path() + " does not match the program",
                             .expected = "a checkpoint with the object '" + object.name + "'",
                             .got = "a checkpoint without the object"});
  }
  NamedState state = source.custom(object.name);
  if (state.values->is_null()) state.values = json::object();
  // Tensors in the file are read-only.
  for (auto& item : state.tensors) item.value() = item.value().clone();
  object.load(state);
}

void Checkpoints::load_trainer(const StateSource& source) {
  ++loads_;
  core_.scaler_updates.settle();  // earlier gradients no longer count
  GuardAccess::go_on(core_.scaler);
  // A guard does not take over the scale of a training under fp16.
  const auto scaler = source.scaler();
  if (scaler && core_.scales_loss()) core_.scaler.load_state_dict(*scaler);
  if (const auto progress = source.progress()) core_.progress->load_state_dict(*progress);
  core_.counts.updates = core_.preemption.updates_seen = source.updates();
}

// The part of the process with the same rank; if the number of processes differs, that of process
// 0.
NamedState Checkpoints::own_part(const StateSource& source) const {
  const dist::Environment& environment = core_.environment;
  const bool same_processes = source.num_processes() == environment.num_processes;
  return source.rank(same_processes ? environment.process_index : 0);
}

void Checkpoints::load_rank(const StateSource& source, const NamedState& state) {
  const dist::Environment& environment = core_.environment;
  const bool same_processes = source.num_processes() == environment.num_processes;
  const bool has_windows = same_processes && state.values->contains("windows");
  load_windows(core_, names_of_parameters(),
               has_windows ? state : NamedState{.values = json{{"windows", json::array()}}});
  if (has_windows) load_parallel(core_, state);
  const json skipped_steps = source.skipped_steps();
  for (const auto& [number, optimizer] : core_.optimizers.numbered()) {
    const auto found = skipped_steps.find(std::to_string(number));
    if (found != skipped_steps.end()) {
      optimizer->set_last_step(StepResult::decided(found->get<bool>()));
    }
  }

  const StateDict random = with_prefix(state.tensors, "random.");
  loop_to_resume_.reset();
  if (random.is_empty()) return;
  if (!same_processes) {
    log_on_main(LogLevel::warning,
                c10::str(source.path(), " was saved by ", source.num_processes(),
                         source.num_processes() == 1 ? " process" : " processes",
                         ": the samples continue where they were, but random numbers are new"));
    derive_random_numbers(random, environment.process_index);
    return;
  }
  for (const std::string& name : RandomState{.tensors = random}.restore()) {
    log_on_main(LogLevel::info,
                "random numbers of " + name + " not restored: the device is not present");
  }
  loop_to_resume_ = source.running_loader();
  random_of_loop_ = RandomState::capture().tensors;
}

void Checkpoints::resume_prepared() {
  if (!looked_for_resume_) {
    looked_for_resume_ = true;
    if (auto source = source_to_resume()) {
      NamedState own;
      in_all(*core_.world, [&] {
        require_whole_windows(*source, core_.environment.num_processes);
        own = own_part(*source);
        load_trainer(*source);
        for (const CustomObject& object : custom_) load_custom(*source, object);
      });
      log_on_main(LogLevel::info, "resuming from " + source->path());
      resumed_ = summary_of(*source);
      resume_ = Resume{.source = std::move(source), .own_part = std::move(own)};
    }
  }
  if (!core_.optimizers.all().empty()) claim_project_to_train();
  if (!resume_) return;
  in_all(*core_.world, [&] { load_objects(*resume_, /*all=*/false); });
}

// Not in_all(): a single process may come here, for example with an evaluation before the training.
// resume_prepared() has already read the process's own part, which is most likely to fail in one
// process alone. What remains are optimizers whose models were prepared later.
void Checkpoints::finish_resume() {
  if (!resume_) return;
  load_objects(*resume_, /*all=*/true);
  require_same_objects(*resume_->source);
  load_rank(*resume_->source, resume_->own_part);
  resume_.reset();
}

void Checkpoints::finish_resume_if_all_are_there() {
  if (!resume_) return;
  const StateSource::Contents saved = resume_->source->contents();
  const bool all = saved.models == resume_->models && saved.optimizers == resume_->optimizers &&
                   saved.schedulers == resume_->schedulers &&
                   (!saved.custom || saved.custom->size() == custom_.size());
  if (all) finish_resume();
}

void Checkpoints::begin_loop(const data::LoaderState& loader) {
  finish_resume_if_all_are_there();
  if (!loop_to_resume_) return;
  for (const auto& [number, living] : core_.loaders.living()) {
    if (number != *loop_to_resume_ || living.get() != &loader) continue;
    loop_to_resume_.reset();
    RandomState{.tensors = std::exchange(random_of_loop_, StateDict())}.restore();
  }
}

void Checkpoints::begin_backward() {
  finish_resume();
  loop_to_resume_.reset();
  if (std::exchange(begins_anew_, false)) warn_of_unused_checkpoints();
  core_.progress->note_backward();
}

void Checkpoints::forget() {
  wait();
  resume_.reset();
  looked_for_resume_ = false;
  begins_anew_ = false;
  loop_to_resume_.reset();
  custom_.clear();
  resumed_.reset();
  *core_.progress = TrainingProgress();
}

}  // namespace accelerant::detail
