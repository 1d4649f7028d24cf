#include "core/launch_contract.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace accelerant {

std::string launched_rank() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK",
                           "PMIX_RANK", "SLURM_PROCID"}) {
    // Outside a job step, the shell of salloc has a SLURM_PROCID too.
    if (std::string_view(name) == "SLURM_PROCID" && std::getenv("SLURM_STEP_ID") == nullptr)
      continue;
    const char* const rank = std::getenv(name);
    if (rank != nullptr && *rank != '\0') return rank;
  }
  return "";
}

std::optional<std::string> own_error_file() {
  constexpr const char* owner_variable = "ACCELERANT_ERROR_FILE_OWNER";
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr) return std::nullopt;
  const std::string file = path;
  const std::string self = std::to_string(::getpid()) + ":" + file;
  const char* const value = std::getenv(owner_variable);
  const std::string owner = value == nullptr ? "" : value;
  if (owner == self) return file;
  // Else of another file: of a process that has started a launcher.
  if (!owner.empty() && owner.substr(owner.find(':') + 1) == file) return std::nullopt;
  ::setenv(owner_variable, self.c_str(), /*overwrite=*/1);
  return file;
}

void mark_saving() noexcept {
  const char* const path = std::getenv(kSavingFileVariable);
  if (path == nullptr) return;
  const int file = ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file >= 0) ::close(file);
}

}  // namespace accelerant
