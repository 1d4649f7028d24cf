// The environment of a rank.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace accelerant::launch {

using Variables = std::map<std::string, std::string>;

// Which of how many processes a rank is, and where it meets the others.
struct RankPlace {
  int64_t local_rank = 0;
  int64_t local_world_size = 1;
  int64_t machine_rank = 0;
  int64_t num_machines = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  int64_t restart_count = 0;
  int64_t max_restarts = 0;
  std::string run_id = "none";
  std::string error_file = {};
  std::string secret_file = {};         // with the secret of the run; empty: it has none
  std::optional<int64_t> threads = {};  // OMP_NUM_THREADS; none: a fair share, unless it is set

  int64_t rank() const { return machine_rank * local_world_size + local_rank; }
  int64_t world_size() const { return num_machines * local_world_size; }
};

// The file that a rank with this error file creates when it begins to save
// (core/launch_contract.h).
std::string saving_file_of(const std::string& error_file);

// torchrun's variables for this rank, the file that it creates when it begins to save, and on one
// machine NCCL's interface, unless the user has set it.
Variables rank_variables(const RankPlace& place);

// The environment of this process, as "NAME=value", with `variables` replacing those of the same
// name, and without what an outer launcher set for its own rank.
std::vector<std::string> environment_with(const Variables& variables);

// How many processors this process may use.
int64_t count_processors();

}  // namespace accelerant::launch
