// The numbered checkpoints of a run: `<project>/checkpoints/checkpoint_0`, `checkpoint_1`, and so
// on.
//
//   const std::string folder = checkpoints_folder(project);
//   clean_leftovers(folder);                                      // when the run starts
//   const FoundCheckpoint last = find_newest_valid(folder, warn);  // to go on
//   …
//   const CheckpointFolder next(checkpoint_path(folder, next_number(folder)));
//   next.begin(); …; next.commit(manifest);
//   prune(folder, 3);                                             // when the new one is safe
//
// What has another name, like `best` or `checkpoint_3_copy`, is never looked at. Of several
// processes, one calls what changes the folder.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

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

// `<project>/checkpoints`.
std::string checkpoints_folder(const std::string& project);

// `<folder>/checkpoint_<number>`.
std::string checkpoint_path(const std::string& folder, std::int64_t number);

// The complete ones, that is folders with a manifest, by number. None where the folder is missing.
// The files are not looked at.
std::vector<NumberedCheckpoint> list_checkpoints(const std::string& folder);

// One above the highest number that anything in the folder has, complete or not; 0 where there is
// none.
std::int64_t next_number(const std::string& folder);

// Ends what an interrupted save, replacement or removal left (see checkpoint_folder.h). Returns the
// names that are gone now. Only for the run that saves here: a save under way would lose its files.
std::vector<std::string> clean_leftovers(const std::string& folder);

// Removes the oldest until `keep` complete ones are left; the newest always stays. Returns the
// paths of those that were removed.
std::vector<std::string> prune(const std::string& folder, std::int64_t keep);

// The newest whose manifest and checksums are right, after a look at every byte of it. `report` is
// called with a text for each newer one that was refused: its path and all that is wrong with it.
// Where none is left, an Error lists them all. An empty `report` is fine.
FoundCheckpoint find_newest_valid(const std::string& folder,
                                  const std::function<void(const std::string&)>& report);

}  // namespace accelerant::checkpoint
