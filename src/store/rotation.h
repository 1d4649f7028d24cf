// The numbered checkpoints of a run: `<project>/checkpoints/checkpoint_0`, `checkpoint_1` and so
// on.
//
//   const std::string folder = checkpoints_folder(project);
//   clean_leftovers(folder);                                      // when the run starts
//   const FoundCheckpoint last = find_newest_valid(folder, warn);  // to resume
//   …
//   const CheckpointFolder next(checkpoint_path(folder, next_number(folder)));
//   next.begin(); …; next.commit(manifest);
//   prune(folder, 3);                                             // when the new one is safe
//
// Entries with other names, such as `best` or `checkpoint_3_copy`, are ignored. With several
// processes, only one may call the functions that change the folder: the one that holds the lock of
// the project (folder_lock.h), `<project>/accelerant.lock`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "store/folder_lock.h"
#include "store/manifest.h"

namespace accelerant::checkpoint {

struct NumberedCheckpoint {
  std::int64_t number = 0;
  std::string path = {};

  bool operator==(const NumberedCheckpoint&) const = default;
};

struct FoundCheckpoint {
  std::int64_t number = 0;
  std::string path = {};
  Manifest manifest = {};
};

// `<project>/accelerant.lock`.
std::string lock_of_project(const std::string& project);

// `<project>/checkpoints`.
std::string checkpoints_folder(const std::string& project);

// `<folder>/checkpoint_<number>`.
std::string checkpoint_path(const std::string& folder, std::int64_t number);

// The complete checkpoints, that is, folders with a manifest, by number. Empty if the folder is
// missing. Does not check the files.
std::vector<NumberedCheckpoint> list_checkpoints(const std::string& folder);

// The other folders with the name of a checkpoint, and links to nothing. They are damaged, since a
// save under way or interrupted has another name, or they were made by another program.
std::vector<NumberedCheckpoint> list_without_manifest(const std::string& folder);

// One above the highest number of anything in the folder, complete or not; 0 if there is none.
std::int64_t next_number(const std::string& folder);

// Cleans up after an interrupted save, replacement or removal (see checkpoint_folder.h). Returns
// the removed names. Only for the run that holds the lock: others would lose saves in progress.
std::vector<std::string> clean_leftovers(const std::string& folder, const Owner& owner = {});

// Removes the oldest complete checkpoints until `keep` are left; the newest always stays. Returns
// the removed paths.
std::vector<std::string> prune(const std::string& folder, std::int64_t keep,
                               const Owner& owner = {});

// The newest checkpoint whose manifest and checksums are correct; reads every byte of it. Calls
// `report`, unless it is empty, for each newer one that is damaged, with its path and everything
// that is wrong with it. If none is valid, throws an Error that lists them all. One that cannot be
// read, but may be good, is an Error too: to go on from an older one would throw work away.
FoundCheckpoint find_newest_valid(const std::string& folder,
                                  const std::function<void(const std::string&)>& report);

}  // namespace accelerant::checkpoint
