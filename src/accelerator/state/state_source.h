// A checkpoint to load from, written by Accelerant or by Python's Accelerate.
//
// Python's checkpoints lack some of the state: the position of the program, the positions of
// loaders, and registered objects. These members return nothing then, and the program keeps what it
// has.
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

  // What the checkpoint contains. `custom` is nullopt if this kind of checkpoint cannot hold
  // registered objects.
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

  // For load_optimizer_state_dict. The tensors may be mapped from the file.
  virtual NamedState optimizer(int64_t number, torch::optim::Optimizer& optimizer,
                               const optim::ParameterNames& names) const = 0;

  // The names of its parameters; nullopt if only their positions are known.
  virtual std::optional<std::vector<std::string>> parameters_of_optimizer(int64_t number) const = 0;

  // For a schedule whose current state is `current`.
  virtual nlohmann::json scheduler(int64_t number, const nlohmann::json& current) const = 0;

  // Contains "trained" if the resumed epoch must not run the loop over this loader again.
  virtual nlohmann::json loader(int64_t number) const = 0;

  // For GradScaler::load_state_dict; nullopt if there was no scaler.
  virtual std::optional<nlohmann::json> scaler() const = 0;

  // The position of the program, for TrainingProgress; and the loader of the innermost running
  // loop.
  virtual std::optional<nlohmann::json> progress() const = 0;
  virtual std::optional<int64_t> running_loader() const = 0;
  virtual int64_t updates() const = 0;

  // By optimizer number: whether the last step was skipped because of overflow. Schedules use it.
  virtual nlohmann::json skipped_steps() const = 0;

  virtual NamedState custom(const std::string& name) const = 0;

  // How many processes saved it, and the part of one of them: {"windows", "parallel"} if saved, and
  // tensors "random.*", "gradients.*".
  virtual int64_t num_processes() const = 0;
  virtual NamedState rank(int64_t rank) const = 0;

 protected:
  explicit StateSource(std::string path) : path_(std::move(path)) {}

 private:
  std::string path_;
};

// Opens the checkpoint in a folder, of either kind. Does not verify checksums.
std::unique_ptr<StateSource> open_state(const std::string& folder);

// Names of parts.
std::string numbered(const std::string& stem, int64_t number);
std::string rank_part(int64_t rank);
std::string custom_part(const std::string& name);

// Prefixes of tensors in the part of a process: the exchange of a model's gradients, and its
// buffers.
std::string parallel_prefix(int64_t model);
std::string buffers_prefix(int64_t model);

inline constexpr const char* kTrainerPart = "trainer";

}  // namespace accelerant::detail
