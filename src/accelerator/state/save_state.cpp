// Saves a checkpoint: what it contains, and which process writes it.
#include <torch/optim/optimizer.h>
#include <torch/version.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <nlohmann/json.hpp>
#include <numeric>

#include "accelerant/core/error.h"
#include "accelerant/optim/optimizer_state.h"
#include "accelerant/version.h"
#include "accelerator/core.h"
#include "accelerator/prepared/model_state.h"
#include "accelerator/prepared/optimizer_state.h"
#include "accelerator/prepared/scheduler_state.h"
#include "accelerator/state/agreed.h"
#include "accelerator/state/checkpoints.h"
#include "accelerator/state/schedule_shape.h"
#include "accelerator/state/state_source.h"
#include "accelerator/state/window_state.h"
#include "core/files.h"
#include "dist/side_channel.h"
#include "dist/world_access.h"
#include "store/rotation.h"
#include "tensor/random_state.h"
#include "tensor/state_prefix.h"
#include "watch/failure.h"

namespace accelerant::detail {
namespace {

using checkpoint::SaveRequest;
using checkpoint::StatePart;
using nlohmann::json;

// An exchange fails if another process fails, so the failure is marked as a consequence.
template <class F>
auto exchanged(F&& f) {
  try {
    return f();
  } catch (const Error& error) {
    throw dist::ExchangeError(error.what(), error.what(), /*is_consequence=*/true);
  }
}

class BetweenProcesses final : public checkpoint::Agreement {
 public:
  explicit BetweenProcesses(const dist::World& world)
      : rank_(world.rank()), channel_(dist::SideChannel::open(world, "saving a checkpoint")) {}

  int64_t rank() const override { return rank_; }
  bool is_alone() const override { return false; }
  std::vector<std::string> collect(const std::string& mine) override {
    return exchanged([&] { return channel_->collect(mine); });
  }
  std::string announce(const std::string& text) override {
    return exchanged([&] { return channel_->announce(text); });
  }

 private:
  int64_t rank_;
  std::unique_ptr<dist::SideChannel> channel_;
};

// Which process writes each of the parts that all processes have. Models go to process 0, whose
// buffers are the ones that count. The other parts are assigned by size, largest first, each to the
// process that has least to write so far. All processes compute the same result.
std::vector<int64_t> spread(const std::vector<StatePart>& models,
                            const std::vector<StatePart>& others, int64_t num_processes) {
  std::vector<uint64_t> load(static_cast<std::size_t>(num_processes));
  for (const StatePart& model : models) load[0] += tensor_bytes(model);
  std::vector<std::size_t> order(others.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](std::size_t i) { return tensor_bytes(others[i]); });
  std::vector<int64_t> writers(others.size());
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(load);
    writers[i] = least - load.begin();
    *least += tensor_bytes(others[i]);
  }
  return writers;
}

// Lets the hooks see the tensors of all models and remove some.
void call_hooks(const std::vector<std::shared_ptr<StateHook>>& hooks, const std::string& path,
                std::vector<StatePart>& models) {
  std::vector<StateDict> states;
  for (const StatePart& model : models) states.push_back(model.state.tensors);
  for (const auto& hook : hooks) {
    if (*hook) (*hook)(states, path);
  }
  for (std::size_t i = 0; i < std::min(models.size(), states.size()); ++i) {
    models[i].state.tensors = states[i];
  }
}

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

const char* name_of_precision(Precision precision) {
  switch (precision) {
    case Precision::no:
      break;
    case Precision::fp16:
      return "fp16";
    case Precision::bf16:
      return "bf16";
  }
  return "no";
}

}  // namespace

Checkpoints::Checkpoints(Core& core) : core_(core) {}

Checkpoints::~Checkpoints() = default;

void Checkpoints::add_custom(CustomObject object) {
  const bool good_name = !object.name.empty() && object.name.front() != '.' &&
                         std::ranges::all_of(object.name, [](unsigned char c) {
                           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
                         });
  if (!good_name) {
    throw Error(ErrorDetails{.problem = "register_for_checkpointing() got an invalid name",
                             .expected = "letters, digits, '_', '-' and '.', since it names a file",
                             .got = "'" + object.name + "'"});
  }
  if (std::ranges::find(custom_, object.name, &CustomObject::name) != custom_.end()) {
    throw Error(ErrorDetails{.problem = "Two objects were registered under one name",
                             .expected = "a different name for each",
                             .got = "'" + object.name + "' twice"});
  }
  custom_.push_back(std::move(object));
  if (resume_) load_custom(*resume_->source, custom_.back());
}

StateHookHandle Checkpoints::add_save_hook(StateHook hook) {
  return StateHookHandle(save_hooks_.emplace_back(std::make_shared<StateHook>(std::move(hook))));
}

StateHookHandle Checkpoints::add_load_hook(StateHook hook) {
  return StateHookHandle(load_hooks_.emplace_back(std::make_shared<StateHook>(std::move(hook))));
}

void Checkpoints::wait() {
  if (saver_) saver_->wait();
}

checkpoint::StateSaver& Checkpoints::saver() {
  if (!saver_) {
    saver_ = std::make_unique<checkpoint::StateSaver>(
        core_.world->is_connected() ? std::make_unique<BetweenProcesses>(*core_.world)
                                    : checkpoint::agreement_with_nobody(),
        dist::WorldAccess::timeline(*core_.world));
  }
  return *saver_;
}

std::string Checkpoints::checkpoints_folder() const {
  if (core_.options.project.dir.empty()) {
    throw Error(ErrorDetails{.problem = "There is no folder for checkpoints",
                             .expected = "a folder, or the option project.dir",
                             .got = "neither",
                             .hint = "Accelerator({.project = {.dir = \"runs/first\"}})"});
  }
  return checkpoint::checkpoints_folder(core_.options.project.dir);
}

int64_t Checkpoints::take_number() {
  if (!next_number_) {
    const std::string folder = checkpoints_folder();
    next_number_ =
        from_main(*core_.world, [&]() -> json {
          return std::max(core_.options.project.iteration, checkpoint::next_number(folder));
        }).get<int64_t>();
  }
  return (*next_number_)++;
}

void Checkpoints::require_all_processes() const {
  if (core_.open_scopes.join) {
    throw Error(ErrorDetails{.problem = "The state cannot be saved inside join_uneven_inputs()",
                             .expected = "all processes in the loop, since each saves its part",
                             .got = "a loop that some processes may have left",
                             .hint = "save before or after join_uneven_inputs()"});
  }
  if (core_.environment.use_distributed() && !core_.world->is_connected()) {
    throw Error(ErrorDetails{.problem = "The state cannot be saved after end_training()",
                             .expected = "connected processes",
                             .got = "closed connections"});
  }
}

std::string Checkpoints::save(const std::optional<std::string>& folder,
                              const SaveStateOptions& options) {
  const auto span = core_.timeline().span(Phase::save);
  finish_resume();
  require_all_processes();
  core_.nonfinite_stop.settle();
  SaveRequest request;
  if (folder) {
    request.path = *folder;
    request.existing = checkpoint::Existing::replace;
  } else {
    const std::string all = checkpoints_folder();
    claim_project_to_save();
    request.lock = lock_;
    request.path = checkpoint::checkpoint_path(all, take_number());
    request.total_limit = core_.options.project.total_limit;
  }
  try {
    require_no_step_is_due(core_);
    core_.scaler_updates.settle();
    core_.settle_schedules();  // they set the rates of the optimizers
    request.parts = parts_to_write(request.path);
    request.content = manifest_content();
  } catch (const std::exception& error) {
    // All processes must learn of the failure.
    request.failure = error.what();
    request.parts.clear();
  }
  const std::string path = request.path;
  if (options.async) {
    saver().save_in_background(std::move(request));
  } else {
    saver().save(request);
  }
  return path;
}

optim::ParameterNames Checkpoints::names_of_parameters() const {
  optim::ParameterNames names;
  for (const auto& [number, model] : core_.models.numbered()) {
    names.add(model->module().named_parameters(),
              number == 0 ? "" : numbered("model", number) + ".");
  }
  return names;
}

std::vector<StatePart> Checkpoints::parts_to_write(const std::string& path) const {
  const int64_t rank = core_.environment.process_index;
  const optim::ParameterNames names = names_of_parameters();
  std::vector<StatePart> models;
  for (const auto& [number, model] : core_.models.numbered()) {
    models.push_back(
        {.name = numbered("model", number), .state = {.tensors = model->module().state_dict()}});
  }
  std::vector<StatePart> optimizers;
  for (const auto& [number, optimizer] : core_.optimizers.numbered()) {
    optimizers.push_back({.name = numbered("optimizer", number),
                          .state = optim::optimizer_state_dict(optimizer->optimizer(), names)});
  }
  // Before the hooks, which may behave differently in different processes.
  const std::vector<int64_t> writers = spread(models, optimizers, core_.environment.num_processes);

  std::vector<StatePart> parts;
  call_hooks(save_hooks_, path, models);
  if (rank == 0) parts = std::move(models);
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    if (writers[i] == rank) parts.push_back(std::move(optimizers[i]));
  }
  // In every process: an object may gather its state from all of them.
  for (const CustomObject& object : custom_) {
    StatePart part{.name = custom_part(object.name), .state = object.save()};
    // Even an object without state gets a part.
    if (part.state.tensors.is_empty() && *part.state.values == json::object()) {
      part.state.values = json(nullptr);
    }
    if (rank == 0) parts.push_back(std::move(part));
  }
  if (rank == 0) parts.push_back({.name = kTrainerPart, .state = trainer_state()});
  parts.push_back({.name = rank_part(rank), .state = rank_state(names)});
  for (const StatePart& part : parts) checkpoint::require_storable(part);
  return parts;
}

NamedState Checkpoints::trainer_state() const {
  json models = json::array();
  for (const auto& model : core_.models.numbered()) models.push_back(model.number);
  json optimizers = json::array();
  json skipped_steps = json::object();
  for (const auto& [number, optimizer] : core_.optimizers.numbered()) {
    optimizers.push_back(number);
    const auto& last = optimizer->last_step();
    if (last && last->kind() == StepResult::Kind::submitted) {
      skipped_steps[std::to_string(number)] = last->skipped();
    }
  }
  json schedulers = json::object();
  for (const auto& [number, scheduler] : core_.schedulers.numbered()) {
    schedulers[std::to_string(number)] = saved_schedule(scheduler->schedule());
  }
  json loaders = json::object();
  json running = nullptr;
  for (const auto& [number, loader] : core_.loaders.living()) {
    if (core_.loaders.innermost() == loader.get()) running = number;
    json& state = loaders[std::to_string(number)] = loader->state_dict();
    const bool goes_on = core_.progress->is_inside_epoch();
    if (goes_on && core_.progress->was_trained_with(*loader)) state["trained"] = true;
    // The loop ends with its last batch. Resuming it with nothing left would not look like
    // training.
    if (loader->is_last_batch() &&
        core_.progress->is_training_with(*loader, core_.counts.backwards)) {
      state["epoch"] = loader->epoch() + 1;
      state["position"] = 0;
      state["trained"] = true;
    }
  }
  return {.values = json{{"models", std::move(models)},
                         {"optimizers", std::move(optimizers)},
                         {"schedulers", std::move(schedulers)},
                         {"loaders", std::move(loaders)},
                         {"running_loader", std::move(running)},
                         {"progress", core_.progress->state_dict()},
                         {"updates", core_.counts.updates},
                         {"skipped_steps", std::move(skipped_steps)},
                         {"scaler", core_.scales_loss() ? core_.scaler.state_dict() : json()}}};
}

NamedState Checkpoints::rank_state(const optim::ParameterNames& names) const {
  NamedState state = save_windows(core_, names);
  add_with_prefix(state.tensors, "random.", RandomState::capture().tensors);
  json parallel = json::object();
  for (const auto& [number, model] : core_.models.numbered()) {
    if (model->parallel() == nullptr) continue;
    const NamedState exchange = model->parallel()->state_dict();
    parallel[std::to_string(number)] = *exchange.values;
    add_with_prefix(state.tensors, parallel_prefix(number), exchange.tensors);
    // The buffers of process 0 are saved with the model. Those of other processes differ until the
    // next exchange.
    if (core_.environment.process_index != 0) {
      add_with_prefix(state.tensors, buffers_prefix(number), model->module().named_buffers());
    }
  }
  state.values["parallel"] = std::move(parallel);
  return state;
}

json Checkpoints::manifest_content() const {
  return {{"kind", "training"},
          {"created", now()},
          {"accelerant", ACCELERANT_VERSION},
          {"torch", TORCH_VERSION},
          {"run", core_.environment.run_id},
          {"num_processes", core_.environment.num_processes},
          {"device", core_.options.device->str()},
          {"mixed_precision", name_of_precision(*core_.options.mixed_precision)},
          {"gradient_accumulation_steps", *core_.options.gradient_accumulation.steps},
          {"epoch", core_.progress->epoch_to_resume()},
          {"updates", core_.counts.updates}};
}

}  // namespace accelerant::detail
