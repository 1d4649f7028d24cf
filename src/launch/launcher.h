// Starts the processes of a training and watches them: the work of `accelerant launch`.
//
//   const auto result =
//       launch::launch({.command = {"./train", "--epochs", "3"}, .num_processes = 4});
//   return result.exit_code;
//
// Every rank has torchrun's environment and a session of its own. What ranks write appears on this
// process's standard output and standard error, each line with its rank; on a terminal a progress
// bar stays below them. When a rank fails the others are stopped, and the cause is the last thing on
// the screen. SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 to this process go to the ranks. When
// ranks end with exit code 75 because they were asked to save and stop (core/error.h), the others
// get the time to do so too. No rank outlives this process, even if it is killed.
//
// For a process that does nothing else: while it runs it changes how this process handles signals
// and adopts orphans, and it must be called from its only thread. Other programs use run_ranks
// (accelerant/launch/debug_launcher.h).
//
// The options become a LaunchPlan and the port is bound; then come attempts. run_rank_group
// (rank_group.h) is one attempt, from the start of its processes to the end of the last one: a poll
// loop over output, ends of processes and signals. Output passes through RankStream to the Console,
// which never blocks. report.h finds out who failed first. A Guardian kills what is left if this
// process is killed itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/launch/debug_launcher.h"

namespace accelerant::launch {

struct LaunchOptions {
  // --- what and where ---

  // Program and arguments; the program is searched for in PATH. Must not be empty.
  std::vector<std::string> command = {};

  // How many processes on all machines together; the same number on each. At least 1. Default: 1.
  int64_t num_processes = 1;

  // How many machines. Start the launcher on each of them, with its machine_rank. Default: 1.
  int64_t num_machines = 1;

  // Which of the machines this is, counted from 0. Required if there are several.
  std::optional<int64_t> machine_rank = {};

  // Address at which the other machines can reach machine 0. Required if there are several.
  // Default on a single machine: 127.0.0.1.
  std::string main_process_ip = {};

  // Port on machine 0 at which the ranks meet. 0 picks a free one, on a single machine only.
  // Default: 0 on a single machine, 29500 on several.
  std::optional<int> main_process_port = {};

  // A file with the secret of the run, the same on all machines: processes that do not know it cannot
  // join. It must belong to this user and be closed to others (meet/secret.h). Default: on a single
  // machine the launcher makes a secret for every attempt; on several there is none.
  std::string secret_file = {};

  // Use this machine alone, at 127.0.0.1 and a free port, whatever the four fields above say.
  // Default: false.
  bool standalone = false;

  // --- what the ranks are told ---

  // ACCELERATE_MIXED_PRECISION: "no", "fp16" or "bf16". Default: not set.
  std::optional<std::string> mixed_precision = {};

  // ACCELERATE_GRADIENT_ACCUMULATION_STEPS, at least 1. Default: not set.
  std::optional<int64_t> gradient_accumulation_steps = {};

  // ACCELERATE_USE_CPU: train on the CPU even if there are GPUs. Default: not set.
  bool cpu = false;

  // ACCELERATE_DEBUG_MODE: check before each collective that all ranks call the same one. Default:
  // not set.
  bool debug = false;

  // OMP_NUM_THREADS of each rank, at least 1. Default: unchanged if it is set; otherwise, with
  // several ranks, this machine's processors divided among them.
  std::optional<int64_t> num_cpu_threads_per_process = {};

  // More variables, which override all others. Default: none.
  std::map<std::string, std::string> environment = {};

  // --- failures ---

  // How often to start all ranks of this machine again after one has failed, at least 0. Default: 0.
  int64_t max_restarts = 0;

  // The time between asking ranks to stop (SIGTERM, or the launcher's own signal) and killing them.
  // Default: 30 s.
  std::chrono::duration<double> grace = std::chrono::seconds(30);

  // The same for ranks that are saving their state because they were asked to stop. Counts only if
  // it is longer than `grace`, which need only cover the current update. Default: 10 min.
  std::chrono::duration<double> saving_grace = std::chrono::minutes(10);

  // How often to look for ended ranks, in addition to the kernel's notification. Default: 0.1 s.
  std::chrono::duration<double> monitor_interval = std::chrono::milliseconds(100);

  // If ranks of this machine are still running this long after another one has ended with exit code
  // 0, say so once per attempt: often they wait for it. None: never. Default: 10 s.
  std::optional<std::chrono::duration<double>> notice_after = std::chrono::seconds(10);

  // --- output ---

  // Folder for <run_id>/attempt_<n>/<rank>/stdout.log, stderr.log and error.json. If these ranks
  // already have files of an earlier run with the same run_id, <run_id>_2 is used, or _3 and so on.
  // Default: no log files; if tee or redirect ask for them, a new folder in TMPDIR.
  std::string log_dir = {};

  // Which streams go to the screen and to the log files: 0 none, 1 standard output, 2 standard
  // error, 3 both, for all ranks ("3") or for some of this machine's by their local rank
  // ("0:3,1:1"). Default: 3 if log_dir is set and neither this nor redirect is, else 0.
  std::string tee = {};

  // Which streams go only to the log files, in the same form as tee. Default: 0.
  std::string redirect = {};

  // Name of this run (TORCHELASTIC_RUN_ID, folder of the log files), without "/". Default: date,
  // time and process id.
  std::string run_id = {};

  // Print only what ranks write, and nothing of the launcher's own. Default: false.
  bool quiet = false;
};

struct LaunchResult {
  // 0 if all ranks succeeded; 75 if they saved their state and ended on request; 128 + signal if a
  // signal stopped the launcher; else that of the rank that failed first (128 + signal if one ended
  // it).
  int exit_code = 0;
  int signal = 0;        // the signal that stopped the launcher; 0: none
  int64_t restarts = 0;  // how often the ranks were started again
  std::vector<RankResult> ranks =
      {};                   // of this machine, in the last attempt; `err` is its last lines
  std::string report = {};  // what was printed at the end; empty if all ranks succeeded
};

// Blocks until all ranks have ended. Throws Error before any rank is started if the launch cannot
// work: a port in use, a folder that cannot be written to, a program that does not exist.
LaunchResult launch(const LaunchOptions& options);

}  // namespace accelerant::launch
