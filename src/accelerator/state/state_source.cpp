#include "accelerator/state/state_source.h"

#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "checkpoint/python_state.h"
#include "checkpoint/state_part.h"
#include "core/files.h"
#include "optim/python_optimizer_state.h"
#include "store/manifest.h"
#include "tensor/state_prefix.h"

namespace accelerant::detail {
namespace {

using nlohmann::json;

constexpr std::string_view kCustomFolder = "custom/";

std::string without_extension(const std::string& file) { return file.substr(0, file.rfind('.')); }

// 0, 1, ..., count - 1.
std::set<int64_t> numbers_below(int64_t count) {
  std::set<int64_t> numbers;
  for (int64_t number = 0; number < count; ++number) numbers.insert(number);
  return numbers;
}

std::set<int64_t> numbers_in(const json& by_number) {
  std::set<int64_t> numbers;
  for (const auto& [number, state] : by_number.items()) numbers.insert(std::stoll(number));
  return numbers;
}

class OwnState final : public StateSource {
 public:
  explicit OwnState(const std::string& folder)
      : StateSource(folder),
        manifest_(checkpoint::read_manifest(folder)),
        trainer_(*part(kTrainerPart).values) {}

  Contents contents() const override {
    std::set<std::string> custom;
    for (const auto& [file, record] : manifest_.files) {
      if (file.starts_with(kCustomFolder)) {
        custom.insert(without_extension(file.substr(kCustomFolder.size())));
      }
    }
    return {.models = trainer_.at("models").get<std::set<int64_t>>(),
            .optimizers = trainer_.at("optimizers").get<std::set<int64_t>>(),
            .schedulers = numbers_in(trainer_.at("schedulers")),
            .loaders = numbers_in(trainer_.at("loaders")),
            .custom = std::move(custom)};
  }

  std::string model_path(int64_t number) const override {
    return join_path(path(), numbered("model", number) + ".safetensors");
  }

  NamedState optimizer(int64_t number, torch::optim::Optimizer&,
                       const optim::ParameterNames&) const override {
    return part(numbered("optimizer", number));
  }

  std::optional<std::vector<std::string>> parameters_of_optimizer(int64_t number) const override {
    const json values = *part(numbered("optimizer", number)).values;
    std::vector<std::string> names;
    for (const json& group : values.at("param_groups")) {
      for (const json& name : group.at("params")) names.push_back(name.get<std::string>());
    }
    return names;
  }

  json scheduler(int64_t number, const json&) const override {
    return trainer_.at("schedulers").at(std::to_string(number));
  }
  json loader(int64_t number) const override {
    return trainer_.at("loaders").at(std::to_string(number));
  }

  std::optional<json> scaler() const override {
    const json& scaler = trainer_.at("scaler");
    return scaler.is_null() ? std::nullopt : std::optional(scaler);
  }

  std::optional<json> progress() const override { return trainer_.at("progress"); }
  std::optional<int64_t> running_loader() const override {
    const json& running = trainer_.at("running_loader");
    return running.is_null() ? std::nullopt : std::optional(running.get<int64_t>());
  }
  int64_t updates() const override { return trainer_.at("updates").get<int64_t>(); }
  json skipped_steps() const override { return trainer_.at("skipped_steps"); }

  NamedState custom(const std::string& name) const override { return part(custom_part(name)); }

  int64_t num_processes() const override {
    return manifest_.content.at("num_processes").get<int64_t>();
  }
  NamedState rank(int64_t rank) const override { return part(rank_part(rank)); }

 private:
  NamedState part(const std::string& name) const {
    if (!checkpoint::has_part(manifest_, name)) {
      throw Error(ErrorDetails{.problem = path() + " is not a training checkpoint",
                               .expected = "a checkpoint written by save_state()",
                               .got = "a checkpoint without '" + name + "'"});
    }
    return checkpoint::read_part(path(), manifest_, name);
  }

  checkpoint::Manifest manifest_;
  json trainer_;
};

class PythonState final : public StateSource {
 public:
  explicit PythonState(const std::string& folder) : StateSource(folder), folder_(folder) {
    for (const std::string& text : folder_.unread()) {
      log_on_main(LogLevel::warning,
                  folder + ", saved by Python, is not loaded completely: " + text);
    }
  }

  Contents contents() const override {
    return {.models = numbers_below(folder_.models()),
            .optimizers = numbers_below(folder_.optimizers()),
            .schedulers = numbers_below(folder_.schedulers())};
  }

  std::string model_path(int64_t number) const override { return folder_.model_file(number); }
  NamedState optimizer(int64_t number, torch::optim::Optimizer& optimizer,
                       const optim::ParameterNames& names) const override {
    return optim::from_python_state(folder_.optimizer(number), optimizer, names);
  }
  std::optional<std::vector<std::string>> parameters_of_optimizer(int64_t) const override {
    return std::nullopt;
  }
  json scheduler(int64_t number, const json& current) const override {
    const json saved = folder_.scheduler(number);
    // For a schedule of torch::optim only the step count is known.
    if (current.contains("step_count")) return {{"step_count", saved.at("last_epoch")}};
    return checkpoint::schedule_state_of(saved, current);
  }
  json loader(int64_t) const override { return {}; }
  std::optional<json> scaler() const override {
    const auto saved = folder_.scaler();
    return saved && saved->empty() ? std::nullopt : saved;  // it was disabled
  }
  std::optional<json> progress() const override { return std::nullopt; }
  std::optional<int64_t> running_loader() const override { return std::nullopt; }
  int64_t updates() const override { return 0; }
  json skipped_steps() const override { return json::object(); }
  NamedState custom(const std::string&) const override { return {}; }
  int64_t num_processes() const override { return folder_.ranks(); }

  NamedState rank(int64_t rank) const override {
    NamedState state;
    if (const auto random = folder_.random(rank)) {
      add_with_prefix(state.tensors, "random.", random->tensors);
    }
    return state;
  }

 private:
  checkpoint::PythonStateFolder folder_;
};

}  // namespace

std::unique_ptr<StateSource> open_state(const std::string& folder) {
  if (checkpoint::PythonStateFolder::is_one(folder)) return std::make_unique<PythonState>(folder);
  return std::make_unique<OwnState>(folder);
}

std::string numbered(const std::string& stem, int64_t number) {
  return number == 0 ? stem : stem + "_" + std::to_string(number);
}

std::string rank_part(int64_t rank) { return "rank_" + std::to_string(rank); }

std::string parallel_prefix(int64_t model) { return "parallel." + std::to_string(model) + "."; }

std::string buffers_prefix(int64_t model) { return "buffers." + std::to_string(model) + "."; }

std::string custom_part(const std::string& name) { return std::string(kCustomFolder) + name; }

}  // namespace accelerant::detail
