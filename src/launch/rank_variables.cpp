#include "launch/rank_variables.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/launch_contract.h"

namespace accelerant::launch {
namespace {

// Set for one rank of an outer launcher; our ranks would mistake them for their own.
constexpr std::string_view kOfAnOuterRank[] = {
    "ACCELERANT_ERROR_FILE_OWNER", "ACCELERANT_MASTER_LISTEN_FD", kErrorIsReportedVariable,
    kSavingFileVariable,           kSecretFileVariable,           kTerminalVariable,
    "TORCHELASTIC_ERROR_FILE"};

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

// NCCL takes the loopback interface only if there is no other one, and would listen where other
// machines reach it.
bool keeps_nccl_at_loopback(const RankPlace& place) {
  if (place.num_machines > 1) return false;
  const bool user_decides =
      is_set("NCCL_SOCKET_IFNAME") || is_set("NCCL_SOCKET_FAMILY") || is_set("NCCL_COMM_ID");
  return !user_decides;
}

}  // namespace

int64_t count_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
}

std::string saving_file_of(const std::string& error_file) { return error_file + ".saving"; }

Variables rank_variables(const RankPlace& place) {
  const std::string rank = std::to_string(place.rank());
  const std::string world_size = std::to_string(place.world_size());
  Variables variables = {
      {"RANK", rank},
      {"LOCAL_RANK", std::to_string(place.local_rank)},
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", std::to_string(place.local_world_size)},
      {"GROUP_RANK", std::to_string(place.machine_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(place.num_machines)},
      {"ROLE_RANK", rank},
      {"ROLE_NAME", "default"},
      {"ROLE_WORLD_SIZE", world_size},
      {"MASTER_ADDR", place.master_addr},
      {"MASTER_PORT", std::to_string(place.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(place.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(place.max_restarts)},
      {"TORCHELASTIC_RUN_ID", place.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},  // rank 0 hosts the store
  };
  if (!place.error_file.empty()) {
    variables["TORCHELASTIC_ERROR_FILE"] = place.error_file;
    variables[kSavingFileVariable] = saving_file_of(place.error_file);
  }
  if (!place.secret_file.empty()) variables[kSecretFileVariable] = place.secret_file;
  if (!is_set("TORCH_NCCL_ASYNC_ERROR_HANDLING")) {
    variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1";
  }
  if (keeps_nccl_at_loopback(place)) variables["NCCL_SOCKET_IFNAME"] = "=lo";  // exactly that one
  if (place.threads) {
    variables["OMP_NUM_THREADS"] = std::to_string(*place.threads);
  } else if (place.local_world_size > 1 && !is_set("OMP_NUM_THREADS")) {
    // torchrun says 1. A fair share uses the whole machine without overloading it.
    variables["OMP_NUM_THREADS"] =
        std::to_string(std::max<int64_t>(1, count_processors() / place.local_world_size));
  }
  return variables;
}

std::vector<std::string> environment_with(const Variables& variables) {
  std::vector<std::string> environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (variables.contains(std::string(name))) continue;
    if (std::ranges::find(kOfAnOuterRank, name) != std::end(kOfAnOuterRank)) continue;
    environment.emplace_back(text);
  }
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  return environment;
}

}  // namespace accelerant::launch
