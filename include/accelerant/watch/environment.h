// Which process this is, of how many, and where they meet.
//
//   const auto environment = accelerant::dist::Environment::detect();
//   if (environment.is_main_process()) std::cout << environment.num_processes << " processes\n";
//
// A plain value; Accelerate has a global singleton instead. It is read from the variables that the
// launcher sets: `accelerant launch`, torchrun and `accelerate launch`, mpirun of Open MPI, MPICH,
// Intel MPI and MVAPICH, and srun. Without variables, or with a size of 1, there is one process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace accelerant::dist {

enum class DistributedType {
  no,         // one process
  multi_cpu,  // several processes on CPUs
  multi_gpu,  // several processes with a GPU each
};

// The launcher whose variables told the rank.
enum class Launcher {
  none,      // started by hand
  torch,     // RANK and WORLD_SIZE: accelerant launch, torchrun, accelerate launch
  open_mpi,  // OMPI_COMM_WORLD_RANK
  mpich,     // PMI_RANK: MPICH, Intel MPI and their derivatives
  mvapich,   // MV2_COMM_WORLD_RANK
  pmix,      // PMIX_RANK, with the size from srun or from WORLD_SIZE
  slurm,     // SLURM_PROCID, inside a job step of more than one task
};

struct Environment {
  // detect() sets multi_cpu for several processes; choosing a device may make it multi_gpu.
  DistributedType distributed_type = DistributedType::no;
  int64_t process_index = 0;        // 0 to num_processes - 1, on all machines together
  int64_t num_processes = 1;        // on all machines together
  int64_t local_process_index = 0;  // on this machine
  int64_t local_num_processes = 1;  // on this machine

  // As the launcher says. MPI does not say: then they are computed as if all machines ran as many
  // processes as this one, in order.
  int64_t machine_index = 0;
  int64_t num_machines = 1;

  // Where the processes meet, on the machine of process 0.
  std::string master_address = "127.0.0.1";
  int master_port = 29500;

  // The launcher serves the store at that address (torchrun); otherwise process 0 does.
  bool uses_agent_store = false;
  // A bound socket, not yet listening, that the launcher gave to process 0 to serve the store on.
  std::optional<int> listen_fd = {};
  // The file with the secret of the run (ACCELERANT_SECRET_FILE), which every process must know that
  // connects to the store of process 0. Empty: everybody may. Unused if the launcher serves the store.
  std::string secret_file = {};

  int64_t restart_count = 0;  // how often the launcher has restarted all processes
  std::string run_id = {};    // the launcher's name for this run; may be empty
  Launcher launcher = Launcher::none;

  bool is_main_process() const { return process_index == 0; }
  bool is_local_main_process() const { return local_process_index == 0; }
  bool is_last_process() const { return process_index == num_processes - 1; }
  bool use_distributed() const { return num_processes > 1; }
  bool on_one_machine() const { return local_num_processes == num_processes; }

  // Looks at the launchers in the order of `Launcher`. Throws Error, with the names of the
  // variables, if they are incomplete, not numbers, out of range (rank 4 of 4) or contradict each
  // other. A torch launcher may run inside srun or mpirun; then its variables win.
  //
  // MASTER_ADDR and MASTER_PORT are used with any launcher. Without an address it is this machine if
  // all processes run on it, else the first host of the Slurm node list, else an Error. Without a
  // port it is 29500; for MPI and Slurm it is one of 20000 to 29999 that depends on the job, so that
  // two jobs on one machine do not meet.
  static Environment detect();

  // The value of a variable; nothing if it is not set. An empty value counts as not set.
  using Lookup = std::function<std::optional<std::string>(const char* name)>;

  // The same with other variables than this process's own.
  static Environment detect(const Lookup& lookup);
};

}  // namespace accelerant::dist
