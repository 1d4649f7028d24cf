// How one process of a group ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "accelerant/core/error_report.h"
#include "accelerant/core/preempted.h"

namespace accelerant::launch {

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

  // It saved its state and ended because it was asked to (core/preempted.h), by whomever.
  bool preempted() const { return exit_code == kPreemptedExitCode; }
  bool failed() const { return exit_code != 0 && !stopped && !preempted(); }
};

}  // namespace accelerant::launch
