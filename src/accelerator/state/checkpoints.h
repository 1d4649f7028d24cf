// Saves and loads everything that an Accelerator has prepared. A checkpoint is a folder
// (store/checkpoint_folder.h) of parts (checkpoint/state_part.h):
//
//   model, model_1, ...          parameters and buffers
//   optimizer, optimizer_1, ...  options and state by the names of parameters
//   trainer                      scaler, schedules, loaders, position of the program
//   custom/<name>                registered objects
//   rank_<r>                     of one process: random numbers, windows and gradients, exchange of
//                                gradients
//
// Each process writes its own part. Process 0 writes the models, since its buffers are the ones
// that count. Optimizers are distributed so that all processes write about the same amount. All
// processes compute the same distribution, so they need not communicate.
//
// Objects are identified by their numbers in the order of preparation. Loading collects a Change
// for each object, which checks names and shapes, and applies the changes once all of them fit. If
// one fails anyway, the ones before it are undone.
//
// The project is locked for the run (store/folder_lock.h) from the moment that an optimizer is
// prepared, so that a second training ends at once and not at its first save. Programs that only
// load, or resume without an optimizer, need no lock: they change nothing.
//
// A different number of processes can resume, too: positions of loaders count the samples of all
// processes, and new random numbers are derived from the saved ones. Incomplete windows are an
// Error then.
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
#include "store/folder_lock.h"

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

  // Without a folder, saves under the next number of the project. Returns the path of the
  // checkpoint, which is not complete yet if the save is asynchronous.
  std::string save(const std::optional<std::string>& folder, const SaveStateOptions& options);

  // Waits for saves in the background, and throws the Error of a failed one.
  void wait();

  // Without a folder, loads the newest good checkpoint of the project.
  LoadedState load(const std::optional<std::string>& folder);

  // Where the training was resumed from, if it was.
  const std::optional<LoadedState>& resumed() const { return resumed_; }

  // Resuming happens in pieces, since a program may prepare its objects in several calls. The first
  // prepare() finds the checkpoint and loads the trainer's part. The part of the process waits for
  // the last object: the first forward, loop or epochs() that finds all of them prepared loads it,
  // while accumulate(), backward() and saving require them. Random numbers are restored that late
  // because programs draw some during construction. A loop that was saved in the middle gets its
  // random numbers when it begins, since loops over other loaders may run before it.
  //
  // Called after objects were prepared. If the training is being resumed, restores them; an
  // optimizer is restored as soon as its models are known.
  void resume_prepared();

  // The training begins: restores what concerns all objects together. Throws Error if some of them
  // are not prepared.
  void finish_resume();

  // The same, but only if all objects are prepared: an evaluation may come before the training.
  void finish_resume_if_all_are_there();

  // A backward begins: no saved loop is left to continue.
  void begin_backward();

  // Called in the main process before it changes something in a folder that is not a checkpoint.
  // Throws Error if the folder lies in the project, and another run has taken that over.
  void require_project_around(const std::string& folder) const;

  // Forgets what was prepared, registered and loaded.
  void forget();

  // A loop over a prepared loader begins. A loop that was saved in the middle continues with its
  // random numbers.
  void begin_loop(const data::LoaderState& loader);

  // Number of states loaded so far, or parts of one.
  int64_t loads() const { return loads_; }

 private:
  // The source of a resumed training, while some of its objects may not be prepared yet.
  struct Resume {
    std::shared_ptr<const StateSource> source = {};
    NamedState own_part = {};  // the part of this process
    // Numbers of the objects that have been loaded.
    std::set<int64_t> models = {};
    std::set<int64_t> optimizers = {};
    std::set<int64_t> schedulers = {};
    std::set<int64_t> loaders = {};
  };

  // A change, and how to undo it.
  struct Change {
    std::function<void()> apply = {};
    std::function<void()> undo = {};  // empty: it cannot fail
  };

  checkpoint::StateSaver& saver();
  int64_t take_number();
  // Locks the project for this run, in its main process, and removes what earlier runs left in it.
  // All processes call these together. The first does nothing if the disk refuses a lock: the
  // project may be there only to resume from. The second throws then.
  void claim_project_to_train();
  void claim_project_to_save();
  void claim_project();
  void require_all_processes() const;
  std::string checkpoints_folder() const;

  // The parameters of all prepared models by name. Those of the first model have the module's
  // names, those of the others are prefixed with "model_1." and so on.
  optim::ParameterNames names_of_parameters() const;

  std::vector<checkpoint::StatePart> parts_to_write(const std::string& path) const;
  NamedState trainer_state() const;
  NamedState rank_state(const optim::ParameterNames& names) const;
  nlohmann::json manifest_content() const;

  std::unique_ptr<StateSource> find_source(const std::optional<std::string>& folder) const;
  std::unique_ptr<StateSource> open_in_all(const std::string& path) const;
  std::optional<std::string> newest_to_resume() const;
  std::unique_ptr<StateSource> source_to_resume();
  void warn_of_unused_checkpoints() const;
  void require_same_objects(const StateSource& source) const;
  NamedState own_part(const StateSource& source) const;
  void load_trainer(const StateSource& source);
  void load_rank(const StateSource& source, const NamedState& own_part);
  void load_custom(const StateSource& source, const CustomObject& object) const;
  std::vector<Change> changes_of_models(Resume& resume) const;
  // Loads objects that have not been loaded yet. With `all`, also optimizers whose models are
  // missing.
  void load_objects(Resume& resume, bool all);

  Core& core_;
  std::vector<CustomObject> custom_;
  std::vector<std::shared_ptr<StateHook>> save_hooks_;
  std::vector<std::shared_ptr<StateHook>> load_hooks_;
  std::optional<int64_t> next_number_;
  // In all processes alike.
  bool tried_to_claim_ = false;
  bool has_claimed_ = false;
  // In the main process. Its release comes before the end by an uncaught exception.
  std::shared_ptr<checkpoint::FolderLock> lock_;
  // What the next number was when the checkpoint to resume from was found, without the lock.
  mutable std::optional<int64_t> number_when_found_;
  bool looked_for_resume_ = false;
  bool begins_anew_ = false;  // until the first backward, or until the program loads a state
  std::optional<Resume> resume_;
  std::optional<LoadedState> resumed_;
  int64_t loads_ = 0;

  // The number of the loader whose loop continues, and the random numbers for it.
  std::optional<int64_t> loop_to_resume_;
  StateDict random_of_loop_;

  std::unique_ptr<checkpoint::StateSaver> saver_;
};

}  // namespace accelerant::detail
