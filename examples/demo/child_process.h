// A program that the demo starts, and whose output it reads line by line.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace demo {

class ChildProcess {
 public:
  // Standard output and standard error come together. Throws std::system_error.
  explicit ChildProcess(const std::vector<std::string>& command);

  // Asks the program to stop if it still runs, and kills it if it does not.
  ~ChildProcess();

  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The next line without its end; empty when there are no more. Throws Interrupted.
  std::optional<std::string> next_line();

  // Its exit code, or 128 + the signal that ended it. After the last line.
  int exit_code();

 private:
  // Returns false when the output has ended.
  bool read_more();

  pid_t pid_ = 0;  // 0 when it has ended
  int output_ = -1;
  std::string unread_;
};

}  // namespace demo
