#include "core/launched_rank.h"

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

}  // namespace accelerant
