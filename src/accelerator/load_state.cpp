// Loading: finding a checkpoint, checking that it fits, and giving objects their state.
#include <ATen/Context.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerant/tensor/random_state.h"
#include "accelerator/agreed.h"
#include "accelerator/checkpoints.h"
#include "accelerator/core.h"
#include "accelerator/model_state.h"
#include "accelerator/optimizer_state.h"
#include "accelerator/parameter_naming.h"
#include "accelerator/scheduler_state.h"
#include "accelerator/state_source.h"
#include "accelerator/window_state.h"
#include "checkpoint/model_loading.h"
#include "checkpoint/python_state.h"
#include "checkpoint/rotation.h"
#include "checkpoint/verify.h"
#include "core/files.h"
#include "core/stable_hash.h"
#include "optim/optimizer_loading.h"
#include "tensor/state_prefix.h"

namespace accelerant::detail {
namespace {

using nlohmann::json;

// An Error unless every byte of it is as it was written. Python's have no checksums.
void require_good(const std::string& folder) {
  if (!is_folder(folder)) checkpoint::CheckpointFolder(folder).recover();
  if (!is_folder(folder)) {
    throw Error(ErrorDetails{.problem = "There is no checkpoint to load",
                             .expected = "a folder made by save_state()",
                             .got = folder + ", which is no folder"});
  }
  if (checkpoint::PythonStateFolder::is_one(folder)) return;
  const auto found = checkpoint::verify(folder, checkpoint::Check::checksums);
  if (found.is_valid()) return;
  std::string problems;
  for (const std::string& problem : found.problems) problems += "\n  " + problem;
  throw Error("The checkpoint " + folder + " cannot be loaded:" + problems);
}

std::string newest_good(const std::string& folder) {
  return checkpoint::find_newest_valid(folder,
                                       [](const std::string& text) {
                                         log(LogLevel::warning,
                                             text + "\nThe checkpoint before it is tried.");
                                       })
      .path;
}

void require_count(const std::string& path, const char* what, std::size_t saved,
                   std::size_t prepared) {
  if (saved == prepared) return;
  throw Error(
      ErrorDetails{.problem = path + " is the state of another program",
                   .expected = std::to_string(saved) + " " + what + ", as in the checkpoint",
                   .got = std::to_string(prepared) + " prepared",
                   .hint = "prepare the same objects in the same order"});
}

// Whether the models that the optimizer's parameters belong to are prepared, so that the parameters have names.
bool has_its_models(torch::optim::Optimizer& optimizer, const optim::ParameterNames& names,
                    const std::optional<std::vector<std::string>>& saved) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const std::string* name = names.find(parameter);
      const bool is_known =
          name != nullptr && (!saved || std::ranges::find(*saved, *name) != saved->end());
      if (!is_known) return false;
    }
  }
  return true;
}

// Half of a sum of gradients is of no use to other processes.
void require_whole_windows(const StateSource& source, int64_t num_processes) {
  if (source.num_processes() == num_processes) return;
  const json values = source.rank(0).values;
  if (!values.contains("windows") || !has_half_windows(values)) return;
  throw Error(ErrorDetails{
      .problem = source.path() + " was saved in the middle of accumulated gradients",
      .expected = c10::str(source.num_processes(), " processes, which have a part of them each"),
      .got = c10::str(num_processes),
      .hint = "go on with as many processes, or from a checkpoint that was saved after an update"});
}

void load_parallel(Core& core, const NamedState& state) {
  const auto models = core.models.all();
  const json& saved = state.values.at("parallel");
  for (std::size_t i = 0; i < std::min(models.size(), saved.size()); ++i) {
    if (models[i]->parallel() == nullptr || saved[i].is_null()) continue;
    const std::string prefix = "parallel." + std::to_string(i) + ".";
    models[i]->parallel()->load_state_dict(
        {.values = saved[i], .tensors = with_prefix(state.tensors, prefix)});
  }
}

// Another stream of random numbers for each process, the same whenever the same checkpoint is loaded.
void derive_random_numbers(const StateDict& random, int64_t rank) {
  std::string text = std::to_string(rank);
  if (const at::Tensor* generator = random.find("cpu")) {
    text.append(static_cast<const char*>(generator->const_data_ptr()), generator->nbytes());
  }
  at::manual_seed(stable_hash(text));
}

}  // namespace

std::unique_ptr<StateSource> Checkpoints::find_source(const std::optional<std::string>& folder) {
  const std::string path = from_main(*core_.world, [&]() -> json {
                             if (!folder) return newest_good(checkpoints_folder());
                             require_good(*folder);
                             return *folder;
                           }).get<std::string>();
  std::unique_ptr<StateSource> source;
  in_all(*core_.world, [&] { source = open_state(path); });
  return source;
}

std::unique_ptr<StateSource> Checkpoints::source_to_resume() {
  const ProjectOptions& project = core_.options.project;
  if (*project.resume == "no") return nullptr;
  if (*project.resume != "auto") return find_source(project.resume);
  const bool is_there = from_main(*core_.world, [&]() -> json {
                          const std::string folder = checkpoints_folder();
                          if (!is_folder(folder)) return false;
                          checkpoint::clean_leftovers(folder);
                          return !checkpoint::list_checkpoints(folder).empty();
                        }).get<bool>();
  return is_there ? find_source(std::nullopt) : nullptr;
}

void Checkpoints::require_same_objects(const StateSource& source) const {
  const StateSource::Contents saved = source.contents();
  require_count(source.path(), "models", saved.models, core_.models.all().size());
  require_count(source.path(), "optimizers", saved.optimizers, core_.optimizers.all().size());
  require_count(source.path(), "schedules", saved.schedulers, core_.schedulers.all().size());
  if (saved.loaders) {
    require_count(source.path(), "loaders", *saved.loaders, core_.living_loaders().size());
  }
  if (!saved.custom) return;
  std::vector<std::string> registered;
  for (const CustomObject& object : custom_) registered.push_back(object.name);
  std::ranges::sort(registered);
  if (registered == *saved.custom) return;
  const auto list = [](const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
    return text.empty() ? "none" : text;
  };
  throw Error(ErrorDetails{.problem = source.path() + " is the state of another program",
                           .expected = "registered for checkpointing: " + list(*saved.custom),
                           .got = list(registered)});
}

LoadedState Checkpoints::load(const std::optional<std::string>& folder) {
  wait();
  looked_for_resume_ = true;
  resume_.reset();
  Resume loading{.source = find_source(folder)};
  in_all(*core_.world, [&] {
    require_same_objects(*loading.source);
    require_whole_windows(*loading.source, core_.environment.num_processes);
    load_objects(loading, /*all=*/true);
  });
  for (const CustomObject& object : custom_) load_custom(*loading.source, object, loading);
  load_trainer(*loading.source);
  load_rank(*loading.source);
  const auto progress = loading.source->progress();
  return {.path = loading.source->path(),
          .epoch = progress ? progress->at("epoch").get<int64_t>() : 0,
          .updates = loading.source->updates()};
}

// Everything is checked first and changed then.
void Checkpoints::load_objects(Resume& resume, bool all) const {
  const StateSource& source = *resume.source;
  const StateSource::Contents saved = source.contents();
  std::vector<Commit> commits;

  const auto schedulers = core_.schedulers.all();
  std::size_t scheduler = resume.schedulers;
  for (; scheduler < std::min(schedulers.size(), saved.schedulers); ++scheduler) {
    auto& schedule = schedulers[scheduler]->schedule();
    commits.push_back([&schedule, state = source.scheduler(scheduler, schedule.state_dict())] {
      schedule.load_state_dict(state);
    });
  }
  const auto loaders = core_.living_loaders();
  std::size_t loader = resume.loaders;
  for (; loader < std::min(loaders.size(), saved.loaders.value_or(0)); ++loader) {
    commits.push_back([target = loaders[loader], state = source.loader(loader)] {
      target->load_state_dict(state);
      if (state.contains("trained")) target->skip_loop();
    });
  }
  const auto models = model_states(load_hooks_, source.path());
  std::size_t model = resume.models;
  for (; model < std::min(models.size(), saved.models); ++model) {
    commits.push_back(checkpoint::prepare_loading(models[model], source.model_path(model)).load);
  }
  const optim::ParameterNames names = names_of_parameters(core_);
  const auto optimizers = core_.optimizers.all();
  std::size_t optimizer = resume.optimizers;
  for (; optimizer < std::min(optimizers.size(), saved.optimizers); ++optimizer) {
    torch::optim::Optimizer& target = optimizers[optimizer]->optimizer();
    if (!all && !has_its_models(target, names, source.parameters_of_optimizer(optimizer))) break;
    commits.push_back(
        optim::prepare_loading(target, names, source.optimizer(optimizer, target, names)));
  }
  for (const Commit& commit : commits) commit();
  resume.schedulers = scheduler;
  resume.loaders = loader;
  resume.models = model;
  resume.optimizers = optimizer;
}

void Checkpoints::load_custom(const StateSource& source, const CustomObject& object,
                              Resume& resume) const {
  const auto saved = source.contents().custom;
  if (!saved) return;
  if (std::ranges::find(*saved, object.name) == saved->end()) {
    throw Error(ErrorDetails{.problem = source.path() + " is the state of another program",
                             .expected = "an object '" + object.name + "' in the checkpoint",
                             .got = "a checkpoint without it"});
  }
  NamedState state = source.custom(object.name);
  if (state.values.is_null()) state.values = json::object();
  object.load(state);
  resume.custom.push_back(object.name);
}

void Checkpoints::load_trainer(const StateSource& source) {
  if (const auto scaler = source.scaler()) core_.scaler.load_state_dict(*scaler);
  if (const auto progress = source.progress()) core_.progress->load_state_dict(*progress);
  core_.updates = source.updates();
}

void Checkpoints::load_rank(const StateSource& source) {
  const dist::Environment& environment = core_.environment;
  const bool same_processes = source.num_processes() == environment.num_processes;
  const NamedState state = source.rank(same_processes ? environment.process_index : 0);
  const StateDict random = with_prefix(state.tensors, "random.");
  if (!same_processes) {
    log_on_main(LogLevel::warning,
                c10::str(source.path(), " was saved by ", source.num_processes(),
                         " processes: the samples go on where they were, random numbers are new"));
    derive_random_numbers(random, environment.process_index);
    loop_to_go_on_.reset();
    return;
  }
  if (state.values.contains("windows")) {
    load_windows(core_, names_of_parameters(core_), state);
    load_parallel(core_, state);
  }
  RandomState{.tensors = random}.restore();
  loop_to_go_on_ = source.running_loader();
  random_of_loop_ = RandomState::capture().tensors;
}

void Checkpoints::resume_prepared() {
  if (!looked_for_resume_) {
    looked_for_resume_ = true;
    if (auto source = source_to_resume()) {
      in_all(*core_.world,
             [&] { require_whole_windows(*source, core_.environment.num_processes); });
      log_on_main(LogLevel::info, "resuming from " + source->path());
      load_trainer(*source);
      resume_ = Resume{.source = std::move(source)};
      for (const CustomObject& object : custom_) load_custom(*resume_->source, object, *resume_);
    }
  }
  if (!resume_) return;
  in_all(*core_.world, [&] { load_objects(*resume_, /*all=*/false); });
}

void Checkpoints::finish_resume() {
  if (!resume_) return;
  Resume resume = std::move(*resume_);
  resume_.reset();
  load_objects(resume, /*all=*/true);
  require_same_objects(*resume.source);
  load_rank(*resume.source);
}

void Checkpoints::begin_loop(const data::LoaderState& loader) {
  finish_resume();
  if (!loop_to_go_on_) return;
  const auto loaders = core_.living_loaders();
  const auto number = static_cast<std::size_t>(*loop_to_go_on_);
  if (number >= loaders.size() || loaders[number].get() != &loader) return;
  loop_to_go_on_.reset();
  RandomState{.tensors = std::exchange(random_of_loop_, StateDict())}.restore();
}

}  // namespace accelerant::detail
