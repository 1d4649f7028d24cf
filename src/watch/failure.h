// How one of several processes ends when something fails: at once, with a message that says what
// failed, where and because of whom, and without waiting for processes that are gone.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "accelerant/core/error.h"
#include "core/process_end.h"
#include "watch/monitor.h"
#include "watch/progress.h"

namespace accelerant::dist {

// While it lives, an exception that nobody catches (or std::terminate itself) ends the process like
// this: the message goes to the file TORCHELASTIC_ERROR_FILE, to standard error and to the other
// processes, then the process exits with code 1. Destructors do not run: they might wait for others.
// The newest of several handlers counts. core/process_end.h says what comes before and after.
// Borrows its arguments.
//
// If a launcher has named that file, the same happens from the start of the program, without a
// handler: linking this file is enough. The rank is then taken from the environment, and nobody else
// is told. Programs that a rank starts write no report (core/launch_contract.h).
//
// A Preempted that nobody catches is not a failure: the others are told that this process has left
// the run, and it ends as accelerant/core/error.h says.
//
// From the first handler on the process ignores SIGPIPE, unless the program handles it itself.
class FailureHandler {
 public:
  // The monitor may be null.
  FailureHandler(int64_t rank, const Progress& progress, Monitor* monitor);

 private:
  EndHandler end_handler_;
};

// An exchange that failed. what() names the rank and the step of this process.
class ExchangeError : public Error {
 public:
  // `brief`: the same text for readers who know both. `is_consequence`: the end of another process
  // is to blame.
  ExchangeError(const std::string& text, std::string brief, bool is_consequence)
      : Error(text), brief_(std::move(brief)), is_consequence_(is_consequence) {}

  const std::string& brief() const { return brief_; }
  bool is_consequence() const { return is_consequence_; }

 private:
  std::string brief_;
  bool is_consequence_;
};

// The process in which an exchange failed.
struct FailedExchange {
  const char* operation = "";
  int64_t rank = 0;
  int64_t size = 1;
  int64_t step = 0;
  Monitor* monitor = nullptr;  // null: nobody can be asked
};

// Turns an exception of c10d or Gloo into an ExchangeError: who is to blame and what to do, then
// which exchange failed in which step. Tells the others through the monitor that this process has
// lost its connection. Takes up to half a second, to hear from them. Rethrows an Error as it is.
[[noreturn]] void rethrow_as_error(std::exception_ptr error, const FailedExchange& exchange);

// A message of c10d, Gloo or the store without source location, stack frames and generic advice.
std::string c10d_message(const std::string& message);

}  // namespace accelerant::dist
