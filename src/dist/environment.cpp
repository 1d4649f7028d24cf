#include "accelerant/dist/environment.h"

#include <cstdlib>
#include <string>

#include "accelerant/core/error.h"

namespace accelerant::dist {

Environment Environment::detect() {
  // Of torchrun, Open MPI, MPICH, MVAPICH and srun.
  for (const char* name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                           "SLURM_STEP_NUM_TASKS"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0' || std::string(value) == "1") continue;
    throw Error(ErrorDetails{.problem = "Several processes are not supported by this version",
                             .expected = std::string(name) + " unset or 1",
                             .got = std::string(name) + "=" + value,
                             .hint = "start one process, without torchrun or mpirun"});
  }
  return {};
}

}  // namespace accelerant::dist
