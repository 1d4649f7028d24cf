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
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/launch/run_ranks.h"

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
