// Where the files of a launch's ranks go.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "launch/folders.h"
#include "launch/launch_plan.h"

namespace accelerant::launch {

// The user's folder, or one that is removed at the end.
class RunFolder {
 public:
  // In log_dir it uses <run_id>, or if this machine's ranks already have files of an earlier run
  // there, <run_id>_2 and so on. Nothing is ever overwritten, not even by two launchers at once.
  // Machines that share the folder have different ranks, so they share <run_id> too; a machine that
  // took no part in an earlier run of this name may then be one number behind.
  RunFolder(const LaunchOptions& options, const LaunchPlan& plan);

  // Where the files are, if the user cannot know; else empty.
  const std::string& announcement() const { return announcement_; }
  // A folder that only this user can enter; removed at the end. Always the same one.
  const std::string& private_folder();
  bool has_logs() const { return !temporary_; }
  // Of the folder that is removed at the end; empty if there is none.
  std::string temporary_path() const { return temporary_ ? temporary_->path() : ""; }
  // Throws Error if the folder of this run was removed and cannot be made again.
  std::string of_attempt(int64_t attempt) const;

 private:
  std::optional<TemporaryFolder> temporary_;
  std::optional<TemporaryFolder> private_;  // besides the user's folder, which others may enter
  std::string path_;
  std::string announcement_;
};

}  // namespace accelerant::launch
