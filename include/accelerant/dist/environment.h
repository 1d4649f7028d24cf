// Which process this is, of how many.
#pragma once

#include <cstdint>

namespace accelerant::dist {

enum class DistributedType {
  no,         // one process
  multi_cpu,  // several processes on CPUs
  multi_gpu,  // several processes, a GPU for each
};

// A plain value, where Accelerate has a global singleton.
struct Environment {
  DistributedType distributed_type = DistributedType::no;
  int64_t process_index = 0;        // 0 to num_processes - 1, over all machines
  int64_t num_processes = 1;        // over all machines
  int64_t local_process_index = 0;  // on this machine

  bool is_main_process() const { return process_index == 0; }
  bool is_local_main_process() const { return local_process_index == 0; }
  bool is_last_process() const { return process_index == num_processes - 1; }
  bool use_distributed() const { return num_processes > 1; }

  // What the launcher's variables say: WORLD_SIZE, or those of MPI and Slurm. This version runs one process: more
  // are an Error, rather than several trainings that know nothing of each other.
  static Environment detect();
};

}  // namespace accelerant::dist
