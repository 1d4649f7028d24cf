// Starts one program.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/fd.h"

namespace accelerant::launch {

struct ChildCommand {
  std::string path = {};                      // the file to run
  std::vector<std::string> arguments = {};    // from argv[0] on
  std::vector<std::string> environment = {};  // "NAME=value"
  int inherited_fd = -1;                      // left open in the child; -1: none

  // The terminals on which its standard output and standard error are shown, which it is told of
  // (core/launch_contract.h). -1: none.
  int out_terminal = -1;
  int err_terminal = -1;
};

struct ChildProcess {
  pid_t pid = -1;
  Fd pidfd = {};  // readable when the process has ended; not open on kernels without it
  Fd out = {};    // what it writes to standard output and standard error; reading does not block
  Fd err = {};
};

// The process leads a session and process group of its own, and is killed when the calling thread
// ends, for whatever reason. Throws StartError if the program cannot be started.
ChildProcess start_child(const ChildCommand& command);

// The file of a program, searched for in PATH as shells do. A StartError if it does not exist.
std::string find_program(const std::string& name);

}  // namespace accelerant::launch
