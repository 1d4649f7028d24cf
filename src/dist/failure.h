// How a process of several ends when something fails: with a message that says what, where and because of
// whom, at once, and without waiting for processes that are gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>

#include "dist/monitor.h"
#include "dist/progress.h"

namespace accelerant::dist {

// While it lives, an exception that nobody catches (or std::terminate itself) ends the process so: the
// message goes to the other processes, to the file TORCHELASTIC_ERROR_FILE and to standard error, then
// _exit(1). Destructors do not run: they might wait for others. Of several the newest counts. Borrows what it
// is given.
//
// From the first one on the process ignores SIGPIPE, unless the program handles it itself.
class FailureHandler {
 public:
  // The monitor may be null.
  FailureHandler(int64_t rank, const Progress& progress, Monitor* monitor);
  ~FailureHandler();
  FailureHandler(const FailureHandler&) = delete;
  FailureHandler& operator=(const FailureHandler&) = delete;
};

// The process in which an exchange failed.
struct FailedExchange {
  const char* operation = "";
  int64_t rank = 0;
  int64_t size = 1;
  int64_t step = 0;
  Monitor* monitor = nullptr;  // may be null: then nobody can be asked
};

// Throws what c10d or Gloo threw as an Error that says which exchange failed, in which step, and who is the
// reason. Tells the others through the monitor that this process has lost its connection. Takes up to half a
// second, to hear from them. An Error is thrown on as it is.
[[noreturn]] void rethrow_as_error(std::exception_ptr error, const FailedExchange& exchange);

// The first line of a message of c10d, without the place in its source and the stack.
std::string brief(const std::string& message);

}  // namespace accelerant::dist
