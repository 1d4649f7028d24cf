// The options of a launch, checked and with all defaults filled in.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "launch/launcher.h"
#include "launch/master_port.h"
#include "launch/rank_group.h"
#include "launch/rank_variables.h"
#include "launch/stream_mask.h"

namespace accelerant::launch {

struct LaunchPlan {
  std::string program = {};  // the path of its file
  int64_t machine_rank = 0;
  int64_t num_machines = 1;
  int64_t local_world_size = 1;
  std::string master_addr = {};
  int port = 0;  // 0: a free one in each attempt
  // An absolute path. Empty: on one machine every attempt has a secret of its own, several have none.
  std::string secret_file = {};
  std::string run_id = {};  // as the ranks see it
  StreamMask tee = {};
  StreamMask redirect = {};

  int64_t world_size() const { return num_machines * local_world_size; }
  int64_t rank_of(int64_t local_rank) const { return machine_rank * local_world_size + local_rank; }
};

// Throws Error if the launch cannot work.
LaunchPlan make_plan(const LaunchOptions& options);

// Creates <folder_of_attempt>/<rank> for each rank of this machine.
void make_rank_folders(const LaunchPlan& plan, const std::string& folder_of_attempt);

// A name for the folder of a run's log files: date, time and process id.
std::string name_of_run();

// Rank 0 of the group hosts the store, so the port is bound where it runs.
std::optional<MasterPort> bind_port_of(const LaunchPlan& plan);

// How to start the ranks of this machine. `folder_of_attempt` has a folder for each of them, for its
// error file.
std::vector<RankStart> plan_ranks(const LaunchOptions& options, const LaunchPlan& plan,
                                  std::optional<MasterPort> port, int64_t restart_count,
                                  const std::string& folder_of_attempt);

}  // namespace accelerant::launch
