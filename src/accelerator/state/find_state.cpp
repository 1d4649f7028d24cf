// Finds the checkpoint to load.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerator/core.h"
#include "accelerator/state/agreed.h"
#include "accelerator/state/checkpoints.h"
#include "accelerator/state/state_source.h"
#include "checkpoint/python_state.h"
#include "core/files.h"
#include "store/rotation.h"
#include "store/verify.h"

namespace accelerant::detail {
namespace {

using nlohmann::json;

// Throws Error unless every byte of the checkpoint is intact. Checkpoints written by Python have no
// checksums.
void require_good(const std::string& folder) {
  if (!is_folder(folder)) checkpoint::CheckpointFolder(folder).recover();
  if (!is_folder(folder)) {
    throw Error(ErrorDetails{.problem = "There is no checkpoint to load",
                             .expected = "a folder written by save_state()",
                             .got = folder + ", which is not a folder",
                             .hint = "check the path; project.resume takes \"auto\", \"restart\", "
                                     "\"no\" or the path of a checkpoint"});
  }
  if (checkpoint::PythonStateFolder::is_one(folder)) return;
  const bool has_manifest = path_exists(join_path(folder, checkpoint::kManifestName));
  if (!has_manifest && is_folder(folder + "/checkpoints")) {
    throw Error(ErrorDetails{.problem = "There is no checkpoint to load",
                             .expected = "one of the folders in " + folder + "/checkpoints",
                             .got = folder + ", which is a project",
                             .hint = "to load the newest, set project.dir to it and project.resume "
                                     "to \"auto\", or call load_state() without a folder"});
  }
  const auto found = checkpoint::verify(folder, checkpoint::Check::checksums);
  if (found.is_valid()) return;
  std::string problems;
  for (const std::string& problem : found.problems) problems += "\n  " + problem;
  throw Error("The checkpoint " + folder + " cannot be loaded:" + problems);
}

// By number, with those that have lost their manifest: a training that took them for nothing would
// begin anew. Folders of Python's Accelerate have the same names, but never had a manifest; they are
// loaded by their path only.
std::vector<checkpoint::NumberedCheckpoint> checkpoints_in(const std::string& folder) {
  auto found = checkpoint::list_checkpoints(folder);
  for (auto& one : checkpoint::list_without_manifest(folder)) {
    if (!checkpoint::PythonStateFolder::is_one(one.path)) found.push_back(std::move(one));
  }
  std::ranges::sort(found, {}, &checkpoint::NumberedCheckpoint::number);
  return found;
}

checkpoint::FoundCheckpoint newest_good(const std::string& folder) {
  return checkpoint::find_newest_valid(folder, [](const std::string& text) {
    log(LogLevel::warning, text + "\nTrying the checkpoint before it.");
  });
}

// Whether the launch that restarted this process also saved the checkpoint; nullopt if the launch
// has no name of its own.
std::optional<bool> is_of_this_launch(const checkpoint::Manifest& manifest,
                                      const std::string& run_id) {
  if (run_id.empty() || run_id == "none") return std::nullopt;  // the latter is torchrun's default
  return manifest.content.value("run", "") == run_id;
}

}  // namespace

std::unique_ptr<StateSource> Checkpoints::find_source(
    const std::optional<std::string>& folder) const {
  const std::string path = from_main(*core_.world, [&]() -> json {
                             if (!folder) return newest_good(checkpoints_folder()).path;
                             require_good(*folder);
                             return *folder;
                           }).get<std::string>();
  return open_in_all(path);
}

std::unique_ptr<StateSource> Checkpoints::open_in_all(const std::string& path) const {
  std::unique_ptr<StateSource> source;
  in_all(*core_.world, [&] { source = open_state(path); });
  return source;
}

// Called in the main process. A checkpoint of an earlier launch in the same project does not count
// unless resume is "auto": it is older than the checkpoint that a path names, or than the start of
// a new training.
std::optional<std::string> Checkpoints::newest_to_resume() const {
  const std::string& resume = *core_.options.project.resume;
  const dist::Environment& environment = core_.environment;
  if (core_.options.project.dir.empty()) return std::nullopt;
  if (resume != "auto" && environment.restart_count == 0) return std::nullopt;
  const std::string folder = checkpoints_folder();
  if (!has_claimed_) number_when_found_ = checkpoint::next_number(folder);
  if (checkpoints_in(folder).empty()) return std::nullopt;
  const checkpoint::FoundCheckpoint newest = newest_good(folder);
  const bool counts =
      resume == "auto" ||
      is_of_this_launch(newest.manifest, environment.run_id).value_or(resume == "restart");
  return counts ? std::optional(newest.path) : std::nullopt;
}

// New checkpoints would be numbered after those of another training, and total_limit would remove
// its checkpoints first.
void Checkpoints::warn_of_unused_checkpoints() const {
  if (core_.environment.process_index != 0 || core_.options.project.dir.empty()) return;
  if (saver_ || !core_.warnings.is_open(&WarningOptions::unused_checkpoints)) return;
  std::vector<checkpoint::NumberedCheckpoint> found;
  try {
    const std::string folder = checkpoints_folder();
    if (is_folder(folder)) found = checkpoints_in(folder);
  } catch (const Error&) {  // cannot be read: no reason to stop one process of several
  }
  if (found.empty()) return;
  core_.warnings.say(
      &WarningOptions::unused_checkpoints,
      "This training begins anew, but its project has checkpoints of an earlier one, "
      "up to " +
          found.back().path +
          ". To resume from them, write .project = {.dir = ..., .resume = \"auto\"}; "
          "otherwise set another project.dir, or .resume = \"no\" if both may save "
          "there");
}

std::unique_ptr<StateSource> Checkpoints::source_to_resume() {
  const std::string& resume = *core_.options.project.resume;
  if (resume == "no") return nullptr;
  if (resume == "restart" && core_.environment.restart_count == 0) {
    // All processes get the Error if the folder cannot be read.
    from_main(*core_.world, [&]() -> json {
      return !core_.options.project.dir.empty() && is_folder(checkpoints_folder());
    });
    begins_anew_ = true;
    return nullptr;
  }
  const json found = from_main(*core_.world, [&]() -> json {
    if (const auto newest = newest_to_resume()) return *newest;
    if (resume == "auto" || resume == "restart") return nullptr;
    require_good(resume);
    return resume;
  });
  return found.is_null() ? nullptr : open_in_all(found.get<std::string>());
}

}  // namespace accelerant::detail
