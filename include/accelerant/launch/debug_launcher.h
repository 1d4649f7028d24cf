// Runs a function in several processes of this machine's CPU, to try out distributed code.
//
//   int main() {
//     accelerant::debug_launcher([] {
//       accelerant::Accelerator accelerator;  // one of two processes
//       train(accelerator);
//     });
//   }
//
// The program is started again once for each rank, with the same arguments, and runs up to this
// call; there a rank calls the function and ends. Other calls of debug_launcher on the way do
// nothing in it. Everything before the call thus happens in every rank, too.
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

// How one process of a group ended.

enum class Stream { out, err };  // standard output, standard error

struct RankResult {
  int64_t rank = 0;      // over all machines
  int exit_code = 0;     // 0 to 255; 128 + signal where a signal ended it
  int signal = 0;        // that signal; 0 where it exited by itself
  bool stopped = false;  // it was running well when the group was stopped: no failure of its own
  double end_time = 0;   // seconds since 1970

  std::optional<ErrorReport> error = {};  // what it wrote to TORCHELASTIC_ERROR_FILE
  std::string out = {};                   // its standard output: all of it, where it was captured
  std::string err = {};                   // its standard error: all of it, or the last lines

  // It saved its state and ended because it was asked to (core/error.h), by whomever.
  bool preempted() const { return exit_code == kPreemptedExitCode; }
  bool failed() const { return exit_code != 0 && !stopped && !preempted(); }
};

// Runs several copies of a program as the ranks of one group, and keeps what they write.
//
//   const auto run = launch::run_ranks({.command = {"./my_test", "--fast"}, .num_processes = 2});
//   if (!run.succeeded()) std::cerr << run.report;
//
// For tests and small tools; the command `accelerant launch` is for trainings. The ranks
// meet at 127.0.0.1 on a free port and have torchrun's environment. As soon as one fails, or the
// time is over, the others are stopped; none outlives the call, nor this process. Blocks until
// then. Do not call it from several threads at once, since a rank may inherit descriptors of
// another.

// What a rank writes, as it comes: any bytes, not whole lines.
using OutputHandler = std::function<void(int64_t rank, Stream, std::string_view)>;

struct RunRanksOptions {
  // Program and arguments; the program is searched in PATH. Must not be empty.
  std::vector<std::string> command = {};

  // How many copies to start, at least 1. Default: 2.
  int64_t num_processes = 2;

  // After so many seconds all ranks are killed. None: no limit. Default: 300 s.
  std::optional<std::chrono::duration<double>> timeout = std::chrono::seconds(300);

  // Between asking the other ranks to stop (SIGTERM) and killing them. Default: 5 s.
  std::chrono::duration<double> grace = std::chrono::seconds(5);

  // Variables besides the environment of this process and torchrun's, which they override.
  std::map<std::string, std::string> environment = {};

  // Called with what ranks write, as well as it being kept. Default: none.
  OutputHandler on_output = {};
};

struct RunRanksResult {
  std::vector<RankResult> ranks = {};  // by rank, with all their output
  bool timed_out = false;

  // Which rank failed first and why, or which ended because they were asked to, and what every rank
  // wrote last. Empty if all succeeded.
  std::string report = {};

  bool succeeded() const { return report.empty(); }
};

// A program that cannot be started is a StartError.
RunRanksResult run_ranks(const RunRanksOptions& options);

}  // namespace accelerant::launch

namespace accelerant {

struct DebugLauncherOptions {
  // How many processes to start, at least 1. Default: 2.
  int64_t num_processes = 2;

  // After so many seconds all ranks are killed, which is an Error. None: no limit. Default: 300 s.
  std::optional<std::chrono::duration<double>> timeout = std::chrono::seconds(300);

  // Variables for the ranks besides the environment of this process. Default: none.
  std::map<std::string, std::string> environment = {};

  // Takes what ranks write. Default: it goes to this process's standard output and standard error.
  launch::OutputHandler on_output = {};

  // Arguments for the ranks, without the program's name. None: those of this process.
  std::optional<std::vector<std::string>> arguments = {};
};

namespace detail {
std::vector<launch::RankResult> debug_launch(const std::function<int()>& function,
                                             const DebugLauncherOptions& options,
                                             const std::source_location& where);
}  // namespace detail

// `function` takes nothing and returns nothing or an int, the exit code of its rank. Returns how
// the ranks ended, with their output. A rank that ends with another code than 0, by a signal or by
// an exception is an Error that holds what each rank wrote last.
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
