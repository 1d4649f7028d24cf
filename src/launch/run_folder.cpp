#include "launch/run_folder.h"

#include <dirent.h>
#include <unistd.h>

#include <memory>
#include <string_view>

namespace accelerant::launch {
namespace {

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};

// Whether any attempt of an earlier run has a folder for one of this machine's ranks.
bool has_files_of_ranks(const std::string& folder, const LaunchPlan& plan) {
  const std::unique_ptr<DIR, CloseFolder> entries(::opendir(folder.c_str()));
  if (!entries) return false;
  while (const dirent* entry = ::readdir(entries.get())) {
    if (!std::string_view(entry->d_name).starts_with("attempt_")) continue;
    for (int64_t local_rank = 0; local_rank < plan.local_world_size; ++local_rank) {
      const std::string path =
          folder + "/" + entry->d_name + "/" + std::to_string(plan.rank_of(local_rank));
      if (::access(path.c_str(), F_OK) == 0) return true;
    }
  }
  return false;
}

// Creates the folders of the first attempt. False if somebody else was faster.
bool claim(const std::string& folder, const LaunchPlan& plan) {
  const std::string attempt = folder + "/attempt_0";
  make_writable_folders(attempt);
  for (int64_t local_rank = 0; local_rank < plan.local_world_size; ++local_rank) {
    if (!make_new_folder(attempt + "/" + std::to_string(plan.rank_of(local_rank)))) return false;
  }
  return true;
}

}  // namespace

RunFolder::RunFolder(const LaunchOptions& options, const LaunchPlan& plan) {
  if (!options.log_dir.empty()) {
    const std::string wanted =
        options.log_dir + "/" + (options.run_id.empty() ? name_of_run() : options.run_id);
    path_ = wanted;
    for (int number = 2; has_files_of_ranks(path_, plan) || !claim(path_, plan); ++number) {
      path_ = wanted + "_" + std::to_string(number);
    }
    if (path_ != wanted) {
      announcement_ = "log files: " + path_ + ", since " + wanted + " has those of an earlier run";
    }
  } else if (!options.tee.empty() || !options.redirect.empty()) {
    path_ = make_temporary_folder();
    announcement_ = "log files: " + path_;
  } else {
    path_ = temporary_.emplace().path();
  }
}

const std::string& RunFolder::private_folder() {
  if (!temporary_ && !private_) private_.emplace();
  const TemporaryFolder& folder = temporary_ ? *temporary_ : *private_;
  folder.restore();
  return folder.path();
}

std::string RunFolder::of_attempt(int64_t attempt) const {
  if (temporary_) temporary_->restore();
  return path_ + "/attempt_" + std::to_string(attempt);
}

}  // namespace accelerant::launch
