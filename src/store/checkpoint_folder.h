// A checkpoint is a folder that exists completely or not at all.
//
//   const CheckpointFolder folder("run/checkpoints/checkpoint_3");
//   folder.begin();                                    // one process; then the others may write
//   FileWriter file(folder.new_file("model.safetensors"));
//   file.write(bytes);
//   manifest.files["model.safetensors"] = file.finish();
//   folder.commit(manifest);                           // one process, when all have written
//
// Until commit(), everything lies in `<target>.<owner>.tmp`, where nothing looks for a checkpoint.
// Every file is on the disk before the manifest is, and the manifest before the folder gets its
// name. If a process or machine dies at any point, the target is either as before or complete, with
// at most these leftovers beside it, which the next begin() removes:
//
//   <target>.<owner>.tmp          an interrupted save, or a checkpoint that was replaced
//   <target>.<owner>.removed.tmp  a checkpoint being removed
//   <target>.old.tmp              the complete old checkpoint, moved aside for the new one
//
// <owner> is the id of the lock (folder_lock.h) under which they were made, so that no run takes
// the folders of another one for its own; without a lock the names lack it.
//
// Only one process at a time may call begin, commit, abandon, clear_leftovers and remove on a
// target: the one that holds the lock. So the leftovers of all others are those of runs that have
// ended, or that have lost the lock. Others may call only new_file and recover. An object holds
// nothing but names, so every process creates its own.
#pragma once

#include <optional>
#include <string>

#include "store/folder_lock.h"
#include "store/manifest.h"

namespace accelerant::checkpoint {

// What to do if a checkpoint of that name exists.
enum class Existing { refuse, replace };

class CheckpointFolder {
 public:
  // Throws Error for a path that cannot name a new folder, such as "" and "..".
  explicit CheckpointFolder(const std::string& target, Existing existing = Existing::refuse,
                            Owner owner = {});

  // The target, without trailing slashes.
  const std::string& path() const { return path_; }

  // Recovers, removes leftovers of interrupted saves, and creates the unfinished folder and its
  // parents.
  // Throws Error if the target exists, unless it is a checkpoint or an empty folder and may be
  // replaced. A folder with other content is never touched.
  void begin() const;

  // Where a FileWriter can create the file: in the unfinished folder. Creates
  // subfolders as needed.
  // Processes and threads that write at the same time need distinct names.
  std::string new_file(const std::string& name) const;

  // Gives the checkpoint its name. All files must be finished. After an Error the target is
  // unchanged; call abandon() then. One exception: if the parent folder cannot be synced at the
  // very end, the checkpoint has its name, but might lose it if the machine crashes.
  void commit(const Manifest& manifest) const;

  // Removes the unfinished folder. Anything that cannot be removed stays for the next begin().
  void abandon() const noexcept;

  // Puts `<target>.old.tmp` back if the target is missing: a process died between two renames, on a
  // disk that cannot exchange two names atomically. Also call it before loading if no save is in
  // progress; several processes may do so at once. Removes nothing.
  void recover() const;

  // Recovers, and removes all leftovers beside the target.
  void clear_leftovers() const;

  // Removes the checkpoint. It loses its name first, so a partial one never looks complete.
  void remove() const;

 private:
  void check_target() const;
  void check_replaceable() const;
  void check_files(const Manifest& manifest) const;
  void write_manifest(const std::string& text) const;
  void sync_folders(const Manifest& manifest) const;
  void put_in_place() const;
  void replace_by_two_renames() const;
  void rename_back() const noexcept;
  void remove_staging() const;
  void remove_replaced() const;
  void discard(const std::string& folder) const;
  void require_held() const;

  std::string path_;
  std::string parent_;
  std::string staging_;
  std::string old_;
  std::string removed_;
  Existing existing_;
  Owner owner_;
};

// The name of the checkpoint beside which such a leftover lies; empty for other names.
std::optional<std::string> target_of_leftover(const std::string& name);

}  // namespace accelerant::checkpoint
