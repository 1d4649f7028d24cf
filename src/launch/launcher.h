// Starts the processes of a training and watches over them: what `accelerant launch` does.
//
//   const auto result =
//       launch::launch({.command = {"./train", "--epochs", "3"}, .num_processes = 4});
//   return result.exit_code;
//
// Every rank has torchrun's environment and a session of its own. What ranks write appears on this
// process's standard output and standard error, each line with its rank. When a rank fails the
// others are stopped, and what went wrong is the last thing on the screen. SIGINT, SIGTERM, SIGHUP,
// SIGQUIT and SIGUSR1 to this process go to the ranks. When ranks end with exit code 75, since they
// were asked to save and stop (core/error.h), the others have the time to do so too. No rank
// outlives this process, even if it is killed.
//
// For a process that does nothing else: it changes how this process takes signals and adopts
// orphans while it runs, and must be called from its only thread. Programs that have more to do use
// run_ranks (accelerant/launch/debug_launcher.h).
//
// A LaunchPlan is made of the options and the port is taken; then come attempts. run_rank_group
// (rank_group.h) is one attempt, from the start of its processes to the end of the last: one poll
// loop over output, ends of processes and signals. Output goes by lines through RankStream to the
// Console, which never waits. report.h finds out who failed first. A Guardian kills what is left if
// this process is killed itself.
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

  // Program and arguments; the program is searched in PATH. Must not be empty.
  std::vector<std::string> command = {};

  // How many processes over all machines; the same number on each. At least 1. Default: 1.
  int64_t num_processes = 1;

  // How many machines. The launcher is started on each of them, with its machine_rank. Default: 1.
  int64_t num_machines = 1;

  // Which of the machines this is, from 0. Must be set where there are several.
  std::optional<int64_t> machine_rank = {};

  // Address of machine 0, which the other machines can reach. Must be set where there are several.
  // Default on a single machine: 127.0.0.1.
  std::string main_process_ip = {};

  // Port on machine 0 at which the ranks meet. Default: on a single machine a free one (as for 0),
  // on several 29500.
  std::optional<int> main_process_port = {};

  // This machine alone, at 127.0.0.1 and a free port, whatever the four fields above say.
  bool standalone = false;

  // --- what the ranks are told ---

  // ACCELERATE_MIXED_PRECISION: "no", "fp16" or "bf16". Default: not set.
  std::optional<std::string> mixed_precision = {};

  // ACCELERATE_GRADIENT_ACCUMULATION_STEPS, at least 1. Default: not set.
  std::optional<int64_t> gradient_accumulation_steps = {};

  // ACCELERATE_USE_CPU: train on the CPU even where there are GPUs. Default: not set.
  bool cpu = false;

  // ACCELERATE_DEBUG_MODE: check before each collective that all ranks call the same one. Default:
  // not set.
  bool debug = false;

  // OMP_NUM_THREADS of each rank, at least 1. Default: as it is, or where it is not set and there
  // are several ranks, this machine's processors shared among them.
  std::optional<int64_t> num_cpu_threads_per_process = {};

  // More variables, which override all others. Default: none.
  std::map<std::string, std::string> environment = {};

  // --- failures ---

  // How often all ranks of this machine are started again after one has failed. Default: 0.
  int64_t max_restarts = 0;

  // Between asking ranks to stop (SIGTERM, or the signal to the launcher) and killing them.
  // Default: 30 s.
  std::chrono::duration<double> grace = std::chrono::seconds(30);

  // The same for ranks that are saving their state because they were asked to stop: longer, if it
  // is more than grace, which need only cover the update that is under way. Default: 10 min.
  std::chrono::duration<double> saving_grace = std::chrono::minutes(10);

  // How often to look for ended ranks, besides being told at once by the kernel. Default: 0.1 s.
  std::chrono::duration<double> monitor_interval = std::chrono::milliseconds(100);

  // When ranks of this machine still run so long after another of them has ended with exit code 0,
  // this is said once in each attempt: often they wait for it in vain. None: never. Default: 10 s.
  std::optional<std::chrono::duration<double>> notice_after = std::chrono::seconds(10);

  // --- output ---

  // Folder for <run_id>/attempt_<n>/<rank>/stdout.log, stderr.log and error.json. Where these ranks
  // have files of an earlier run with the same run_id there, <run_id>_2 is taken, or _3 and so on.
  // Default: no log files, or where tee or redirect ask for them a new folder in TMPDIR.
  std::string log_dir = {};

  // Which streams go to the screen and to the log files: 0 none, 1 standard output, 2 standard
  // error, 3 both, for all ranks ("3") or for some of this machine's by their local rank
  // ("0:3,1:1"). Default: 3 if log_dir is set and neither this nor redirect is, else 0.
  std::string tee = {};

  // Which streams go to the log files only; written as tee. Default: 0.
  std::string redirect = {};

  // Name of this run (TORCHELASTIC_RUN_ID, folder of the log files). Default: date, time and
  // process id.
  std::string run_id = {};

  // Do not print what the launcher itself has to say, only what ranks write. Default: false.
  bool quiet = false;
};

struct LaunchResult {
  // 0 if all ranks succeeded; 75 if they saved their state and ended on request; of the rank that
  // failed first (128 + signal if one ended it); 128 + signal if one stopped the launcher.
  int exit_code = 0;
  int signal = 0;        // that stopped the launcher; 0: none
  int64_t restarts = 0;  // how often the ranks were started again
  std::vector<RankResult> ranks =
      {};                   // of this machine, in the last attempt; `err` is its last lines
  std::string report = {};  // what was printed at the end; empty if all ranks succeeded
};

// Blocks until all ranks have ended. What cannot work (a port in use, a folder that cannot be
// written to, a program that does not exist) is an Error before any rank is started.
LaunchResult launch(const LaunchOptions& options);

}  // namespace accelerant::launch
