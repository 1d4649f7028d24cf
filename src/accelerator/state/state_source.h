// A checkpoint to load from: one of ours, or one that Python's Accelerate saved.
//
// Python's has no place for some of what ours holds: where the program stood, positions of loaders,
// objects of the program. Of that nothing is told, and what the program has is left as it is.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "accelerant/optim/optimizer_state.h"
#include "accelerant/tensor/named_state.h"

namespace torch::optim {
class Optimizer;
}

namespace accelerant::detail {

class StateSource {
 public:
  virtual ~StateSource() = default;

  const std::string& path() const { return path_; }

  // What is in it. No names where a kind of checkpoint has no place for objects of the program's
  // own.
  struct Contents {
    std::set<int64_t> models = {};  // numbers, in the order of preparation
    std::set<int64_t> optimizers = {};
    std::set<int64_t> schedulers = {};
    std::set<int64_t> loaders = {};
    std::optional<std::set<std::string>> custom = std::nullopt;  // names
  };
  virtual Contents contents() const = 0;

  // For load_checkpoint_in_model.
  virtual std::string model_path(int64_t number) const = 0;

  // For load_optimizer_state_dict. The tensors may lie in the file.
  virtual NamedState optimizer(int64_t number, torch::optim::Optimizer& optimizer,
                               const optim::ParameterNames& names) const = 0;

  // The names of its parameters; none where they are only known by their places.
  virtual std::optional<std::vector<std::string>> parameters_of_optimizer(int64_t number) const = 0;

  // For a schedule whose state is `current`.
  virtual nlohmann::json scheduler(int64_t number, const nlohmann::json& current) const = 0;

  // With "trained" if the epoch that goes on must not begin it again.
  virtual nlohmann::json loader(int64_t number) const = 0;

  // For GradScaler::load_state_dict; nothing if there was none.
  virtual std::optional<nlohmann::json> scaler() const = 0;

  // Where the program stood, for TrainingProgress; and the loader whose loop was running,
  // innermost.
  virtual std::optional<nlohmann::json> progress() const = 0;
  virtual std::optional<int64_t> running_loader() const = 0;
  virtual int64_t updates() const = 0;

  // By the numbers of optimizers: whether overflow kept the last step from being applied. Schedules
  // ask for it.
  virtual nlohmann::json skipped_steps() const = 0;

  virtual NamedState custom(const std::string& name) const = 0;

  // How many processes saved it, and what one of them had for itself: {"windows", "parallel"} where
  // it was saved, and tensors "random.*", "gradients.*".
  virtual int64_t num_processes() const = 0;
  virtual NamedState rank(int64_t rank) const = 0;

 protected:
  explicit StateSource(std::string path) : path_(std::move(path)) {}

 private:
  std::string path_;
};

// Opens the checkpoint in a folder, of either kind. Its checksums are taken as right.
std::unique_ptr<StateSource> open_state(const std::string& folder);

// Names of parts.
std::string numbered(const std::string& stem, int64_t number);
std::string rank_part(int64_t rank);
std::string custom_part(const std::string& name);

// Of the tensors in the part of a process: how a model's gradients are exchanged, and its buffers.
std::string parallel_prefix(int64_t model);
std::string buffers_prefix(int64_t model);

inline constexpr const char* kTrainerPart = "trainer";

}  // namespace accelerant::detail
