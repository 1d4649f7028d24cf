// Runs several copies of a program as the ranks of one group, and keeps what they write.
//
//   const auto run = launch::run_ranks({.command = {"./my_test", "--fast"}, .num_processes = 2});
//   if (!run.succeeded()) std::cerr << run.report;
//
// For tests and small tools; `accelerant launch` (launch/launcher.h) is for trainings. The ranks
// meet at 127.0.0.1 on a free port and have torchrun's environment. As soon as one fails, or the
// time is over, the others are stopped; none outlives the call, nor this process. Blocks until
// then. Do not call it from several threads at once, since a rank may inherit descriptors of
// another.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/launch/rank_result.h"

namespace accelerant::launch {

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

  // Which rank failed first and why, or which ended because they were asked to, and what every rank wrote last.
  // Empty if all succeeded.
  std::string report = {};

  bool succeeded() const { return report.empty(); }
};

// A program that cannot be started is a StartError.
RunRanksResult run_ranks(const RunRanksOptions& options);

}  // namespace accelerant::launch
