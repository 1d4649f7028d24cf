#include "checkpoint/python_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "accelerant/core/error.h"
#include "checkpoint/python_values.h"
#include "core/files.h"
#include "format/torch_archive.h"
#include "store/manifest.h"

namespace accelerant::checkpoint {
namespace {

using format::PlainValue;
using nlohmann::json;

constexpr const char* kScaler = "scaler.pt";

// "optimizer.bin", "optimizer_1.bin", ...
std::string numbered(const std::string& stem, int64_t index, const std::string& ending) {
  return index == 0 ? stem + ending : stem + "_" + std::to_string(index) + ending;
}

std::string random_file(int64_t rank) { return "random_states_" + std::to_string(rank) + ".pkl"; }

bool is_state_file(const std::string& name) {
  static const std::regex pattern(
      R"(((optimizer|scheduler)(_\d+)?\.bin|scaler\.pt|random_states_\d+\.pkl))");
  return std::regex_match(name, pattern);
}

struct Reason {
  std::regex names;
  const char* text = nullptr;
};

std::string reason_not_read(const std::string& name) {
  static const Reason reasons[] = {
      {std::regex(R"(custom_checkpoint_\d+\.pkl)"),
       "the saved state of an object of the Python program; save its tensors with torch.save for "
       "accelerant::load_tensors"},
      {std::regex(R"(dl_state_dict(_\d+)?\.bin)"),
       "the position of a Python StatefulDataLoader; use skip_first_batches"},
      {std::regex(R"(sampler(_\d+)?\.bin)"), "a Python sampler; give the loader the same seed"},
      {std::regex(R"((model|pytorch_model)(_\d+)?\.(safetensors|bin))"),
       "a model whose number is not in sequence, or that exists in two formats"},
      {std::regex(R"((optimizer|scheduler)_\d+\.bin|random_states_\d+\.pkl)"),
       "its number is not in sequence"},
      {std::regex(R"(pytorch_model_fsdp.*|optimizer_\d+)"),
       "written by FSDP; save with the state dict type FULL_STATE_DICT and without sharding"},
      {std::regex(R"(pytorch_model(_\d+)?|zero_to_fp32\.py|latest)"),
       "written by DeepSpeed; convert it to a model file with its zero_to_fp32.py"},
  };
  for (const Reason& reason : reasons) {
    if (std::regex_match(name, reason.names)) return reason.text;
  }
  return "not written by Accelerate";
}

[[noreturn]] void refuse_index(const std::string& folder, const char* what, int64_t index,
                               int64_t count) {
  throw Error(ErrorDetails{
      .problem = folder + " has no " + what + " number " + std::to_string(index),
      .expected = "as many as the Python program prepared",
      .got = std::to_string(count),
      .hint = "prepare the same objects, in the same order, as the program that saved"});
}

PlainValue read_state(const std::string& path, bool skip_numpy = false) {
  PlainValue value = format::read_torch_archive(path, {.skip_numpy = skip_numpy});
  if (value.kind() == PlainValue::Kind::dict) return value;
  throw Error(ErrorDetails{.problem = path + " does not contain what its name says",
                           .expected = "a dict",
                           .got = "a Python " + std::string(format::name_of(value.kind()))});
}

// --- Random states -------------------------------------------------------------------------------

void add_generator(RandomState& state, const std::string& name, const PlainValue& value,
                   const std::string& path) {
  if (value.kind() != PlainValue::Kind::tensor) {
    throw Error(
        ErrorDetails{.problem = path + " has no valid state of torch's generator '" + name + "'",
                     .expected = "a tensor",
                     .got = "a Python " + std::string(format::name_of(value.kind()))});
  }
  // A copy: it is small, and the file need not stay open for it.
  state.tensors.insert(name, view_of(value.as_tensor(), path).clone());
}

// --- Schedules -----------------------------------------------------------------------------------

// The state with that key: a scheduler's own, or that of the first scheduler inside it. Null if
// there is none.
const json* holder_of(const json& python, const char* key) {
  const json* state = &python;
  while (state->is_object()) {
    if (state->contains(key)) return state;
    const auto inner = state->find("_schedulers");
    if (inner == state->end() || !inner->is_array() || inner->empty()) break;
    state = &inner->front();
  }
  return nullptr;
}

bool is_one_cycle(const json& state) { return state.contains("_schedule_phases"); }

}  // namespace

bool PythonStateFolder::is_one(const std::string& folder) {
  if (!is_folder(folder) || path_exists(join_path(folder, kManifestName))) return false;
  return std::ranges::any_of(entries_of(folder), is_state_file);
}

PythonStateFolder::PythonStateFolder(const std::string& folder) : folder_(folder) {
  if (!is_one(folder)) {
    throw Error(ErrorDetails{
        .problem = folder + " was not written by Accelerate's save_state",
        .expected = "optimizer.bin, random_states_0.pkl and so on, and no manifest.json",
        .got = path_exists(folder) ? "a folder without them, or a checkpoint of Accelerant"
                                   : "no such folder"});
  }
  const auto names = entries_of(folder);
  std::set<std::string> left(names.begin(), names.end());
  const auto count = [&](const auto& name_of_number) {
    int64_t number = 0;
    while (left.erase(name_of_number(number)) != 0) ++number;
    return number;
  };
  while (true) {
    const auto index = static_cast<int64_t>(models_.size());
    std::string name = numbered("model", index, ".safetensors");
    if (!left.contains(name)) name = numbered("pytorch_model", index, ".bin");
    if (left.erase(name) == 0) break;
    models_.push_back(std::move(name));
  }
  optimizers_ = count([](int64_t i) { return numbered("optimizer", i, ".bin"); });
  schedulers_ = count([](int64_t i) { return numbered("scheduler", i, ".bin"); });
  ranks_ = count(random_file);
  has_scaler_ = left.erase(kScaler) != 0;
  for (const std::string& name : left) unread_.push_back(name + ": " + reason_not_read(name));
}

std::string PythonStateFolder::model_file(int64_t index) const {
  if (index < 0 || index >= models()) refuse_index(folder_, "model", index, models());
  return join_path(folder_, models_[static_cast<std::size_t>(index)]);
}

NamedState PythonStateFolder::optimizer(int64_t index) const {
  if (index < 0 || index >= optimizers_) refuse_index(folder_, "optimizer", index, optimizers_);
  const std::string path = join_path(folder_, numbered("optimizer", index, ".bin"));
  return tree_of(read_state(path), path);
}

json PythonStateFolder::scheduler(int64_t index) const {
  if (index < 0 || index >= schedulers_) refuse_index(folder_, "scheduler", index, schedulers_);
  const std::string path = join_path(folder_, numbered("scheduler", index, ".bin"));
  return json_of(read_state(path), path);
}

std::optional<json> PythonStateFolder::scaler() const {
  if (!has_scaler_) return std::nullopt;
  const std::string path = join_path(folder_, kScaler);
  return json_of(read_state(path), path);
}

std::optional<int64_t> PythonStateFolder::step(int64_t rank) const {
  if (rank < 0 || rank >= ranks_) return std::nullopt;
  const PlainValue states = read_state(join_path(folder_, random_file(rank)), /*skip_numpy=*/true);
  const PlainValue* const step = states.as_dict().find("step");  // old versions did not save it
  return step == nullptr ? std::nullopt : std::optional(step->as_int());
}

std::optional<RandomState> PythonStateFolder::random(int64_t rank) const {
  if (rank < 0 || rank >= ranks_) return std::nullopt;
  const std::string path = join_path(folder_, random_file(rank));
  const PlainValue states = read_state(path, /*skip_numpy=*/true);
  RandomState state;
  if (const PlainValue* const cpu = states.as_dict().find("torch_manual_seed")) {
    add_generator(state, "cpu", *cpu, path);
  }
  if (const PlainValue* const cuda = states.as_dict().find("torch_cuda_manual_seed")) {
    int64_t device = 0;
    for (const PlainValue& generator : cuda->as_list()) {
      add_generator(state, "cuda." + std::to_string(device++), generator, path);
    }
  }
  return state;
}

json schedule_state_of(const json& python, const json& current) {
  json state = json::object();
  const bool is_plateau = python.is_object() && python.contains("num_bad_epochs");
  const std::initializer_list<const char*> closed_form = {"last_epoch", "base_lrs", "_last_lr"};
  const std::initializer_list<const char*> plateau = {"best", "num_bad_epochs", "cooldown_counter",
                                                      "last_epoch", "_last_lr"};
  for (const char* const key : is_plateau ? plateau : closed_form) {
    const json* const holder = holder_of(python, key);
    if (holder == nullptr) {
      throw Error(ErrorDetails{
          .problem = "The state of a Python scheduler cannot be loaded",
          .expected =
              std::string("the state_dict() of a scheduler of torch.optim, with '") + key + "'",
          .got = python.is_object() ? "a dict without it" : python.dump()});
    }
    const bool keeps = key == std::string("base_lrs") && is_one_cycle(*holder);
    state[key] = keeps ? current.value(key, holder->at(key)) : holder->at(key);
  }
  return state;
}

}  // namespace accelerant::checkpoint
