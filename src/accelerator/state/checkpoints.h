// Saving and loading everything that an Accelerator has prepared. A checkpoint is a folder
// (store/checkpoint_folder.h) of parts (checkpoint/state_part.h):
//
//   model, model_1, ...          parameters and buffers
//   optimizer, optimizer_1, ...  options and state by the names of parameters
//   trainer                      scaler, schedules, loaders, where the program stands
//   custom/<name>                registered objects
//   rank_<r>                     of one process: random numbers, windows and gradients, exchange of
//                                gradients
//
// Each process writes its own part. Models come from process 0, whose buffers count; optimizers are
// spread so that all processes have about as much to write. All of them compute the same
// distribution, so nobody has to ask.
//
// Objects are known again by their numbers in the order of preparation. Loading collects a Change
// for each of them, which checks names and shapes, and applies them when all fit; if one fails
// nevertheless, those before it are taken back.
//
// Another number of processes can go on too: positions of loaders count the samples of all
// processes, and new random numbers are derived from the saved ones. Half windows are refused.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "accelerant/accelerator/checkpointing.h"
#include "accelerant/optim/optimizer_state.h"
#include "accelerant/tensor/named_state.h"
#include "checkpoint/state_saver.h"

namespace accelerant::data {
class LoaderState;
}

namespace accelerant::detail {

struct Core;
class StateSource;

class Checkpoints {
 public:
  explicit Checkpoints(Core& core);

  // Waits for saves in the background.
  ~Checkpoints();

  void add_custom(CustomObject object);
  StateHookHandle add_save_hook(StateHook hook);
  StateHookHandle add_load_hook(StateHook hook);

  // Without a folder: the next number of the project. Returns where the checkpoint is, or will be.
  std::string save(const std::optional<std::string>& folder, const SaveStateOptions& options);

  // Waits for saves in the background, and throws the Error of one.
  void wait();

  // Without a folder: the newest good one of the project.
  LoadedState load(const std::optional<std::string>& folder);

  // Where the training was resumed from, if it was.
  const std::optional<LoadedState>& resumed() const { return resumed_; }

  // Resuming happens piece by piece, since a program may prepare its objects in several calls. The
  // first prepare() finds the checkpoint and loads the trainer's part. The part of the process
  // waits for the last object: it is loaded by the first forward, loop or epochs() that finds all
  // of them there, while accumulate(), backward() and saving demand them. Random numbers come that
  // late because programs draw some while they are built. A loop that was saved in its middle gets
  // its own when it begins, as loops over other loaders may run before it.
  //
  // Objects were prepared: if a training is resumed, they become what they were, an optimizer as
  // soon as its models are known.
  void resume_prepared();

  // The training begins: what concerns all objects together becomes what it was. An Error if some
  // were not prepared.
  void finish_resume();

  // The same, as soon as all are: what comes now may be an evaluation in front of the training.
  void finish_resume_if_all_are_there();

  // A backward begins: no loop of the checkpoint is left to go on with.
  void begin_backward();

  // What was prepared, registered and loaded is of no interest any more.
  void forget();

  // A loop over a prepared loader begins. One that was saved in its middle goes on with the random
  // numbers it had.
  void begin_loop(const data::LoaderState& loader);

  // States loaded so far, or parts of one.
  int64_t loads() const { return loads_; }

 private:
  // What was loaded from, while objects that belong to it may still come.
  struct Resume {
    std::shared_ptr<const StateSource> source = {};
    NamedState own_part = {};  // what this process had for itself
    // Numbers of those that have been loaded.
    std::set<int64_t> models = {};
    std::set<int64_t> optimizers = {};
    std::set<int64_t> schedulers = {};
    std::set<int64_t> loaders = {};
  };

  // A change, and what takes it back.
  struct Change {
    std::function<void()> apply = {};
    std::function<void()> undo = {};  // empty: it does not fail
  };

  checkpoint::StateSaver& saver();
  int64_t take_number();
  void require_all_processes() const;
  std::string checkpoints_folder() const;

  // Of the parameters of all prepared models: those of the first as the module has them, those of
  // others with "model_1." and so on in front.
  optim::ParameterNames names_of_parameters() const;

  std::vector<checkpoint::StatePart> parts_to_write(const std::string& path) const;
  NamedState trainer_state() const;
  NamedState rank_state(const optim::ParameterNames& names) const;
  nlohmann::json manifest_content() const;

  std::unique_ptr<StateSource> find_source(const std::optional<std::string>& folder) const;
  std::unique_ptr<StateSource> open_in_all(const std::string& path) const;
  std::optional<std::string> newest_to_resume() const;
  std::unique_ptr<StateSource> source_to_resume() const;
  void require_same_objects(const StateSource& source) const;
  NamedState own_part(const StateSource& source) const;
  void load_trainer(const StateSource& source);
  void load_rank(const StateSource& source, const NamedState& own_part);
  void load_custom(const StateSource& source, const CustomObject& object) const;
  std::vector<Change> changes_of_models(Resume& resume) const;
  // Objects that have not been loaded yet; `all`: also optimizers whose models are missing.
  void load_objects(Resume& resume, bool all);

  Core& core_;
  std::vector<CustomObject> custom_;
  std::vector<std::shared_ptr<StateHook>> save_hooks_;
  std::vector<std::shared_ptr<StateHook>> load_hooks_;
  std::optional<int64_t> next_number_;
  bool looked_for_resume_ = false;
  std::optional<Resume> resume_;
  std::optional<LoadedState> resumed_;
  int64_t loads_ = 0;

  // The loop that goes on, by its number among the loaders, and the random numbers it goes on with.
  std::optional<int64_t> loop_to_go_on_;
  StateDict random_of_loop_;

  std::unique_ptr<checkpoint::StateSaver> saver_;
};

}  // namespace accelerant::detail
