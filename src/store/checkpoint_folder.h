// A checkpoint is a folder that exists whole or not at all.
//
//   const CheckpointFolder folder("run/checkpoints/checkpoint_3");
//   folder.begin();                                    // one process; then the others may write
//   FileWriter file(folder.new_file("model.safetensors"));
//   file.write(bytes);
//   manifest.files["model.safetensors"] = file.finish();
//   folder.commit(manifest);                           // one process, when all have written
//
// Until commit() everything lies in `<target>.tmp`, where nothing looks for a checkpoint. Every
// file is on the disk before the manifest is, the manifest before the folder gets its name. A
// process or a machine that dies at any point leaves the target as it was before or as it is
// afterwards, and at most these beside it, which the next begin() removes:
//
//   <target>.tmp          a save that did not end, or a checkpoint that was replaced
//   <target>.old.tmp      the whole old checkpoint, moved aside while a new one gets its name
//   <target>.removed.tmp  a checkpoint on its way out
//
// One process at a time calls begin, commit, abandon and remove on a target, others only new_file.
// An object holds nothing but names: every process makes its own.
#pragma once

#include <string>

#include "store/manifest.h"

namespace accelerant::checkpoint {

// What to do where a checkpoint has the name already.
enum class Existing { refuse, replace };

class CheckpointFolder {
 public:
  // An Error for what cannot be the name of a new folder, like "" and "..".
  explicit CheckpointFolder(const std::string& target, Existing existing = Existing::refuse);

  // The target, without slashes at the end.
  const std::string& path() const { return path_; }

  // Recovers, removes what an interrupted save left, and makes `<target>.tmp` with the folders
  // above it. An Error if the target exists, unless a checkpoint (or an empty folder) is to be
  // replaced: a folder of something else is never touched.
  void begin() const;

  // Where a FileWriter can make the file: in `<target>.tmp`, whose sub-folders are made as needed.
  // Of processes and threads that write at the same time, each needs names of its own.
  std::string new_file(const std::string& name) const;

  // Gives the checkpoint its name. All files must be finished. After an Error the target is as it
  // was before; call abandon() then. One exception: if the folder above cannot be synced at the
  // very end, the checkpoint has its name, but might lose it when the machine crashes.
  void commit(const Manifest& manifest) const;

  // Removes `<target>.tmp`. What cannot be removed stays for the next begin().
  void abandon() const noexcept;

  // Puts `<target>.old.tmp` back where the target is missing: a process died between two renames,
  // on a disk that cannot exchange two names at once. Call it before loading, too, if no save is
  // under way; several processes may do so at once. Removes nothing.
  void recover() const;

  // Recovers and removes everything that stands beside the target.
  void clear_leftovers() const;

  // Removes the checkpoint: it loses its name first, so that half of it never looks whole.
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

  std::string path_;
  std::string parent_;
  std::string staging_;
  std::string old_;
  std::string removed_;
  Existing existing_;
};

}  // namespace accelerant::checkpoint
