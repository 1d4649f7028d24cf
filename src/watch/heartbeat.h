// What a process writes about itself for the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "watch/progress.h"

namespace accelerant::dist {

enum class ProcessState {
  running,
  left,    // has ended its part of the run: it makes no more exchanges
  failed,  // is about to end with an error of its own
  lost,    // is about to end because its exchange with the others failed
};

// Where a process runs, so that others on the same machine can look at it.
struct Whereabouts {
  std::string machine = {};  // differs between machines, and between their pid namespaces
  int64_t pid = 0;
  bool is_traced = false;  // by a debugger, which may stop it for long
};

struct Heartbeat {
  int64_t beat = 0;  // how many were written before
  ProcessState state = ProcessState::running;
  std::string message = {};  // of the error, if there is one
  ProgressSnapshot progress = {};
  Whereabouts whereabouts = {};
};

std::string to_json(const Heartbeat& heartbeat);

// Nothing if the text is not a heartbeat.
std::optional<Heartbeat> heartbeat_of(std::string_view json);

}  // namespace accelerant::dist
