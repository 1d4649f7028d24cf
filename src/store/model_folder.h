// The folder of a saved model. Its files have fixed names, so a new model of several files cannot
// be put in place atomically. Folders inside it make the save all-or-nothing:
//
//   model.saving.lock            names the process that saves (folder_lock.h).
//   model.saving.<id>.tmp/       belongs to one save; <id> is that of its lock.
//   model.saving.<id>.tmp/new/   holds the new files while they are written, at last the file
//                                `complete`, which lists them.
//   model.saving.tmp/            that folder once all is on the disk: it gets this name by one
//                                rename. From then on its files count: readers look here first.
//
// Then the files are moved into place one by one. Whoever finds a complete folder after a crash
// finishes the move. The checksums of the files (model_checksums.h) are one more file of the model.
//
// A process may be suspended at any point, for so long that another one takes over its lock. The new
// one first takes away the folders that belong to other saves. As every removal begins with a rename
// into such a folder, and a new model comes from one, the old one can do neither when it continues;
// all that it can still do is to move a file of a complete model into place, as the new one does.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/core/detail/own_process.h"
#include "store/folder_lock.h"
#include "store/model_checksums.h"

namespace accelerant::checkpoint {

inline constexpr const char* kModelSavingName = "model.saving.tmp";

// One save of a model. One process at a time can save to a folder; threads of a process wait for
// each other.
//
//   ModelSave save(folder);
//   FileWriter file(save.new_file("model.safetensors"));
//   ...
//   save.commit({"model.safetensors"}, sums);
class ModelSave {
 public:
  // Creates the folder. Puts a complete model that waits there in place, and removes what
  // interrupted saves have left. Throws LockRefused if another process is saving to the folder.
  explicit ModelSave(const std::string& folder);

  // Without a commit, removes what was written; the previous model is unchanged.
  ~ModelSave();
  ModelSave(const ModelSave&) = delete;
  ModelSave& operator=(const ModelSave&) = delete;

  // Where to write a file of the new model. Throws Error if another process has taken over.
  std::string new_file(const std::string& name) const;

  // Call this once all `files` (names) are written and synced: from now on they are the model. Puts
  // them in place, in their order, and removes files of the previous model that the new one does
  // not have, with its checksums before all others. `sums` become the new ones; if empty, there are
  // none. After an Error the folder has the previous model or the new one.
  void commit(std::vector<std::string> files, const ModelChecksums& sums);

 private:
  void begin() const;
  void put_in_place(const std::vector<std::string>& files) const;
  void remove_old_checksums(const std::vector<std::string>& files) const;
  void rename_while_held(const std::string& from, const std::string& to) const;
  void rename_if_there(const std::string& from, const std::string& to) const;
  void discard(const std::string& name) const;
  void remove_own() const noexcept;

  std::string folder_;
  std::shared_ptr<FolderLock> lock_;
  std::unique_lock<std::mutex> turn_;
  std::string own_;      // model.saving.<id>.tmp
  std::string staging_;  // the folder `new` in it
  const detail::OwnProcess process_;
};

// The files of a complete model that are not all in place yet; usually empty.
std::optional<std::vector<std::string>> waiting_files(const std::string& folder);

// Whether models saved here or by Hugging Face's libraries have files of that name.
bool is_model_file(const std::string& name);

// Where a file of the model is; empty if it does not exist.
std::optional<std::string> find_model_file(const std::string& folder, const std::string& name);

// The name of the file to read first in a folder: one with all weights, or an index. Prefers
// safetensors, which need no trust. Throws Error if there is no model, or if several files with
// other names could be it.
std::string main_model_file(const std::string& folder);

}  // namespace accelerant::checkpoint
