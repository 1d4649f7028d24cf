// One run at a time saves to a project.
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "accelerator/core.h"
#include "accelerator/state/agreed.h"
#include "accelerator/state/checkpoints.h"
#include "core/files.h"
#include "store/rotation.h"

namespace accelerant::detail {
namespace {

// Of the part of a path that exists.
std::string real_path_above(std::string path) {
  char found[PATH_MAX];
  while (::realpath(path.c_str(), found) == nullptr) {
    const std::string above = folder_of(path);
    if (above == path) return path;
    path = above;
  }
  return found;
}

// Whether a folder, which need not exist yet, is the project's or lies in it.
bool lies_in(const std::string& folder, const std::string& project) {
  return (real_path_above(folder) + "/").starts_with(real_path_above(project) + "/");
}

}  // namespace

using nlohmann::json;

void Checkpoints::claim_project_to_train() {
  if (core_.options.project.dir.empty() || tried_to_claim_) return;
  tried_to_claim_ = true;
  has_claimed_ = from_main(*core_.world, [&]() -> json {
                   try {
                     claim_project();
                     return true;
                   } catch (const SystemError& error) {
                     // The constructor has said it of a folder that is read-only.
                     if (::access(core_.options.project.dir.c_str(), W_OK) != 0) return false;
                     log(LogLevel::warning,
                         "The project " + core_.options.project.dir +
                             " cannot be locked, so nothing can be saved to it: " + error.what());
                     return false;
                   }
                 }).get<bool>();
}

void Checkpoints::claim_project_to_save() {
  if (has_claimed_) return;
  from_main(*core_.world, [&]() -> json {
    claim_project();
    return nullptr;
  });
  tried_to_claim_ = true;
  has_claimed_ = true;
}

// Called in the main process. Leftovers are removed at once: a run that has lost the lock to this
// one may be about to give one of them the name of a checkpoint.
void Checkpoints::claim_project() {
  const std::string& project = core_.options.project.dir;
  const auto lock = checkpoint::FolderLock::acquire(checkpoint::lock_of_project(project),
                                                    "The project " + project);
  const std::string folder = checkpoints_folder();
  // Not if another Accelerator of this process holds it, too, and may be saving.
  const bool is_new = lock.use_count() == 1;
  if (is_new) checkpoint::clean_leftovers(folder, lock->owner());
  if (is_new && number_when_found_ && *number_when_found_ != checkpoint::next_number(folder)) {
    throw Error(ErrorDetails{.problem = "Another run has just saved to the project " + project,
                             .expected = "the checkpoints from which this run was resumed",
                             .got = "a newer one",
                             .hint = "start this program again; it resumes from the newer one"});
  }
  lock_ = lock;
}

void Checkpoints::require_project_around(const std::string& folder) const {
  if (lock_ && lies_in(folder, core_.options.project.dir)) lock_->require_held();
}

}  // namespace accelerant::detail
