// Runs a function in several processes on the CPU of this machine, to try out distributed code.
//
//   int main() {
//     accelerant::debug_launcher([] {
//       accelerant::Accelerator accelerator;  // one of two processes
//       train(accelerator);
//     });
//   }
//
// The program is started again for each rank, with the same arguments, and runs up to this call;
// there the rank calls the function and ends. Other calls of debug_launcher that it passes do
// nothing. So everything before the call happens in every rank too.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/core/error.h"

namespace accelerant::launch {

enum class Stream { out, err };  // standard output, standard error

// How one process of a group ended.
struct RankResult {
  int64_t rank = 0;      // of all machines
  int exit_code = 0;     // 0 to 255; 128 + signal if a signal ended it
  int signal = 0;        // that signal; 0 if it exited by itself
  bool stopped = false;  // it was running well when the group was stopped: not a failure of its own
  double end_time = 0;   // seconds since 1970

  std::optional<ErrorReport> error = {};  // what it wrote to TORCHELASTIC_ERROR_FILE
  std::string out = {};                   // its standard output, if it was captured
  std::string err = {};                   // its standard error: all of it, or the last lines

  // Whether it saved its state and ended because somebody asked it to (core/error.h).
  bool preempted() const { return exit_code == kPreemptedExitCode; }
  bool failed() const { return exit_code != 0 && !stopped && !preempted(); }
};

// Runs several copies of a program as the ranks of one group, and captures what they write.
//
//   const auto run = launch::run_ranks({.command = {"./my_test", "--fast"}, .num_processes = 2});
//   if (!run.succeeded()) std::cerr << run.report;
//
// For tests and small tools; for trainings use the command `accelerant launch`. The ranks meet at
// 127.0.0.1 on a free port and have torchrun's environment. As soon as one fails, or the time is up,
// the others are stopped. Blocks until all have ended; none outlives the call or this process. Do
// not call it from several threads at once, since a rank may inherit descriptors of another.

// Receives what a rank writes as it comes: any bytes, not whole lines.
using OutputHandler = std::function<void(int64_t rank, Stream, std::string_view)>;

struct RunRanksOptions {
  // Program and arguments; the program is searched for in PATH. Must not be empty.
  std::vector<std::string> command = {};

  // How many copies to start, at least 1. Default: 2.
  int64_t num_processes = 2;

  // All ranks are killed after this time. None: no limit. Default: 300 s.
  std::optional<std::chrono::duration<double>> timeout = std::chrono::seconds(300);

  // The time between asking the other ranks to stop (SIGTERM) and killing them. Default: 5 s.
  std::chrono::duration<double> grace = std::chrono::seconds(5);

  // Variables in addition to this process's environment and torchrun's; they override both.
  // Default: none.
  std::map<std::string, std::string> environment = {};

  // Also called with what ranks write. Default: none.
  OutputHandler on_output = {};
};

struct RunRanksResult {
  std::vector<RankResult> ranks = {};  // by rank, with all their output
  bool timed_out = false;

  // Which rank failed first, or which ended because they were asked to; the last lines of every
  // rank; at the end the cause. Empty if all succeeded.
  std::string report = {};

  bool succeeded() const { return report.empty(); }
};

// Throws Error if the program cannot be started.
RunRanksResult run_ranks(const RunRanksOptions& options);

}  // namespace accelerant::launch

namespace accelerant {

struct DebugLauncherOptions {
  // How many processes to start, at least 1. Default: 2.
  int64_t num_processes = 2;

  // All ranks are killed after this time, which is an Error. None: no limit. Default: 300 s.
  std::optional<std::chrono::duration<double>> timeout = std::chrono::seconds(300);

  // Variables for the ranks in addition to this process's environment. Default: none.
  std::map<std::string, std::string> environment = {};

  // Receives what ranks write. Default: this process's standard output and standard error do.
  launch::OutputHandler on_output = {};

  // Arguments for the ranks, without the program's name. Default: those of this process.
  std::optional<std::vector<std::string>> arguments = {};
};

namespace detail {
std::vector<launch::RankResult> debug_launch(const std::function<int()>& function,
                                             const DebugLauncherOptions& options,
                                             const std::source_location& where);
}  // namespace detail

// `function` takes no arguments and returns nothing, or an int: the exit code of its rank. Returns
// how the ranks ended, with their output. Throws Error, with the last lines of each rank, if a rank
// ends with a code other than 0, by a signal or by an exception.
template <class Function>
std::vector<launch::RankResult> debug_launcher(
    Function&& function, const DebugLauncherOptions& options = {},
    const std::source_location& where = std::source_location::current()) {
  return detail::debug_launch(
      [&]() -> int {
        if constexpr (std::is_void_v<std::invoke_result_t<Function>>) {
          std::forward<Function>(function)();
          return 0;
        } else {
          return std::forward<Function>(function)();
        }
      },
      options, where);
}

}  // namespace accelerant
