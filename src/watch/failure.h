// How a process of several ends when something fails: with a message that says what, where and
// because of whom, at once, and without waiting for processes that are gone.
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

// While it lives, an exception that nobody catches (or std::terminate itself) ends the process so:
// the message goes to the file TORCHELASTIC_ERROR_FILE, to standard error and to the other
// processes, then exit code 1. Destructors do not run: they might wait for others. Of several
// handlers the newest counts. core/process_end.h has what comes before and after. Borrows what it
// is given.
//
// Where a launcher has named that file, the same happens from the start of the program on, without
// a handler: linking this file is enough. There the rank is that of the environment, and nobody
// else is told. Programs that a rank starts write no report (core/launch_contract.h).
//
// A Preempted that nobody catches is no failure: the others are told that this process has
// finished, and it ends as accelerant/core/error.h says.
//
// From the first one on the process ignores SIGPIPE, unless the program handles it itself.
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
  // `brief`: the same for readers who know both. `is_consequence`: of the end of another process.
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
  Monitor* monitor = nullptr;  // may be null: then nobody can be asked
};

// Throws what c10d or Gloo threw as an ExchangeError: who is the reason and what to do, then which
// exchange failed, and in which step. Tells the others through the monitor that this process has
// lost its connection. Takes up to half a second, to hear from them. An Error is thrown on as it
// is.
[[noreturn]] void rethrow_as_error(std::exception_ptr error, const FailedExchange& exchange);

// What c10d, Gloo or the store says, without the place in its source, the stack and generic advice.
std::string c10d_message(const std::string& message);

}  // namespace accelerant::dist
