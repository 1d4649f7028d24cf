// Reads the folder that save_state of Python's Accelerate writes:
//
//   model.safetensors, model_1.safetensors (or pytorch_model.bin, pytorch_model_1.bin),
//   optimizer.bin, optimizer_1.bin, scheduler.bin, scheduler_1.bin, scaler.pt,
//   random_states_0.pkl, random_states_1.pkl
//
//   if (PythonStateFolder::is_one(path)) {
//     const PythonStateFolder saved(path);
//     load_checkpoint_in_model(model, saved.model_file(0));
//     optim::load_optimizer_state_dict(
//         adamw, names, optim::from_python_state(saved.optimizer(0), adamw, names));
//     scheduler.load_state_dict(schedule_state_of(saved.scheduler(0), scheduler.state_dict()));
//   }
//
// An object holds only the names of the files; each file is opened on request. Nothing in them is
// executed. A file that is damaged or of another kind is an Error that names it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/tensor/named_state.h"
#include "tensor/random_state.h"

namespace accelerant::checkpoint {

class PythonStateFolder {
 public:
  // Whether the folder has files with Accelerate's names and no manifest. A model alone is not
  // enough.
  static bool is_one(const std::string& folder);

  // Throws Error if it is not such a folder.
  explicit PythonStateFolder(const std::string& folder);

  const std::string& path() const { return folder_; }

  // The number of each, counted from 0 without gaps.
  int64_t models() const { return static_cast<int64_t>(models_.size()); }
  int64_t optimizers() const { return optimizers_; }
  int64_t schedulers() const { return schedulers_; }

  // How many processes saved their random states, from rank 0 without gaps.
  int64_t ranks() const { return ranks_; }

  // For load_checkpoint_in_model. This and the functions below throw Error if there is no such
  // number.
  std::string model_file(int64_t index) const;

  // In Python's structure, for optim::from_python_state. The tensors are views of the file: do not
  // modify them.
  NamedState optimizer(int64_t index) const;

  // Python's scheduler.state_dict(); schedule_state_of() converts it for our schedules.
  nlohmann::json scheduler(int64_t index) const;

  // The state of the GradScaler, for its load_state_dict; nothing if the run had none. An empty
  // object if it was disabled.
  std::optional<nlohmann::json> scaler() const;

  // The count of accumulate() since the last update, as the rank saved it; nothing if that rank has
  // no file.
  std::optional<int64_t> step(int64_t rank = 0) const;

  // The rank's torch generators; nothing if that rank has no file.
  std::optional<RandomState> random(int64_t rank) const;

  // Files in the folder that are not read, each with the reason: "custom_checkpoint_0.pkl: ...".
  const std::vector<std::string>& unread() const { return unread_; }

 private:
  std::string folder_;
  std::vector<std::string> models_;  // names of files
  int64_t optimizers_ = 0;
  int64_t schedulers_ = 0;
  int64_t ranks_ = 0;
  bool has_scaler_ = false;
  std::vector<std::string> unread_;
};

// Converts Python's scheduler.state_dict() to what optim::LrScheduler or optim::ReduceLrOnPlateau
// loads. `current` is the state_dict() of the scheduler that will load it. The states of
// SequentialLR and ChainedScheduler contain their schedulers: base rates, and the step of
// ChainedScheduler, come from the first of them. OneCycleLR stores its initial rates as base rates;
// ours are the highest ones or unused, and are kept. Throws Error if it is not the state of a
// scheduler of torch.optim.
nlohmann::json schedule_state_of(const nlohmann::json& python, const nlohmann::json& current);

}  // namespace accelerant::checkpoint
