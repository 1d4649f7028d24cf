#include "watch/failure.h"

#include <signal.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

#include "accelerant/core/error.h"
#include "core/launch_contract.h"
#include "core/process_end.h"
#include "core/stack_frames.h"

namespace accelerant::dist {
namespace {

using std::chrono::milliseconds;

// What ends this process. Names neither its rank nor its step.
struct Failure {
  std::string message;
  bool is_consequence = false;
};

Failure current_failure() {
  const std::exception_ptr error = std::current_exception();
  if (!error) return {"std::terminate was called without an exception"};
  try {
    std::rethrow_exception(error);
  } catch (const ExchangeError& failed) {
    return {failed.brief(), failed.is_consequence()};
  } catch (const std::exception& exception) {
    return {exception.what()};
  } catch (...) {
    return {"an exception that is not a std::exception"};
  }
}

int64_t rank_of_environment() {
  const std::string text = launched_rank();
  int64_t rank = -1;
  std::from_chars(text.data(), text.data() + text.size(), rank);
  return rank;
}

// What this process itself prints. A launcher that reports the error prints all of it at the end.
std::string printed_text(const std::string& message, bool is_reported) {
  const std::string text = error_text(message);
  const bool is_enough = is_reported && std::getenv(kErrorIsReportedVariable) != nullptr;
  const size_t end = is_enough ? text.find('\n') : std::string::npos;
  return end == std::string::npos ? text : text.substr(0, end) + kRestIsReported;
}

// Writes to the error file and to standard error. Returns the message.
std::string report_failure(int64_t rank, int64_t step) {
  const Failure failure = current_failure();
  ErrorReport report{.message = without_stack_frames(failure.message),
                     .rank = rank,
                     .is_consequence = failure.is_consequence};
  if (step > 0) report.step = step;  // before the first backward there is none
  const auto path = own_error_file();
  const bool is_reported = path && write_error_report(*path, report);
  const std::string where = report.step ? " in step " + std::to_string(step) : "";
  std::fflush(stdout);
  std::fprintf(stderr, "[rank %lld] terminated%s: %s\n", static_cast<long long>(rank),
               where.c_str(), printed_text(failure.message, is_reported).c_str());
  std::fflush(stderr);
  return report.message;
}

// For failures before the first FailureHandler and after the last: a launcher that reads error
// reports should also get one from a program that fails while it reads its arguments. Runs when the
// program is loaded; a handler that the program sets in main takes its place.
[[maybe_unused]] const auto handler_of_launched = []() -> const EndHandler* {
  if (!own_error_file() || rank_of_environment() < 0) return nullptr;
  return new EndHandler([](Ending how) {
    if (how == Ending::failed) report_failure(rank_of_environment(), 0);
  });
}();

enum class Reason { ended, timeout, other };

bool contains_any(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    if (text.find(part) != std::string::npos) return true;
  return false;
}

// Recognised by the texts of Gloo, NCCL and the store.
Reason reason_of(const std::string& text) {
  if (contains_any(text, {"Timed out waiting", "Application timeout", "timed out", "timeout after",
                          "Wait timeout", "collective operation timeout"}))
    return Reason::timeout;
  if (contains_any(text, {"Connection closed by peer", "Connection reset by peer", "Broken pipe",
                          "Connection refused", "Socket closed", "socket closed", "shutdown"}))
    return Reason::ended;
  return Reason::other;
}

}  // namespace

std::string c10d_message(const std::string& message) {
  std::string text = without_stack_frames(message);
  for (const char* advice : {". This may indicate", ". This is typically"})  // of Gloo, generic
    text.resize(std::min(text.find(advice), text.size()));
  // "[/path/in/the/sources/of/gloo.cc:123] " in front.
  if (text.starts_with("[/") && text.find("] ") != std::string::npos) {
    text.erase(0, text.find("] ") + 2);
  }
  return text;
}

namespace {

// Writing to a connection whose other end is gone should be an error of that call. c10d relies on
// Python to ignore the signal that would end this process instead.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

}  // namespace

FailureHandler::FailureHandler(int64_t rank, const Progress& progress, Monitor* monitor)
    : end_handler_([rank, &progress, monitor](Ending how) {
        // A process that has saved its state and stops as requested has not failed.
        const bool has_failed = how == Ending::failed;
        const std::string message = has_failed ? report_failure(rank, progress.step()) : "";
        // Before the connections close, so that the others can say who was the first.
        if (monitor != nullptr)
          monitor->fail(has_failed ? ProcessState::failed : ProcessState::left, message);
      }) {
  ignore_broken_pipes();
}

namespace {

struct ExchangeFailure {
  std::string cause = {};
  std::string hint = {};
  const char* what = "";  // what happened to this process
  bool lost_connection = false;
  std::string original = {};  // what the connection said, if the cause is another
};

[[noreturn]] void throw_exchange_error(ExchangeFailure failure, const FailedExchange& exchange) {
  failure.cause[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(failure.cause[0])));
  const std::string why = failure.cause + "; " + failure.hint + ". ";
  const std::string said = failure.original.empty() ? "" : ": " + failure.original;
  const std::string what = std::string(" ") + failure.what;
  const std::string who =
      "Rank " + std::to_string(exchange.rank) + " of " + std::to_string(exchange.size);
  const std::string operation = exchange.operation;
  throw ExchangeError(
      why + who + what + " (" + operation + ", step " + std::to_string(exchange.step) + ")" + said,
      why + "This process" + what + " (" + operation + ")" + said, failure.lost_connection);
}

}  // namespace

void rethrow_as_error(std::exception_ptr error, const FailedExchange& exchange) {
  std::string original;
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& exception) {
    original = c10d_message(exception.what());
  } catch (...) {
    original = "an exception that is not a std::exception";
  }

  const Reason reason = reason_of(original);
  Monitor* const monitor = exchange.monitor;
  if (monitor != nullptr && reason != Reason::other) monitor->fail(ProcessState::lost, original);
  constexpr milliseconds patience(500);
  switch (reason) {
    case Reason::ended: {
      const EndOfOthers why =
          monitor == nullptr ? EndOfOthers{.cause = "another process has closed its connection",
                                           .hint = "look at the output of the others"}
                             : monitor->who_ended(patience);
      throw_exchange_error({.cause = why.cause,
                            .hint = why.hint,
                            .what = "lost its connection to another process",
                            .lost_connection = true,
                            .original = original},
                           exchange);
    }
    case Reason::timeout:
      throw_exchange_error(
          {.cause = monitor == nullptr ? "there was no answer" : monitor->who_is_late(patience),
           .hint = "if processes are only slow, raise the timeout of the process group",
           .what = "waited too long for the others",
           .original = original},
          exchange);
    case Reason::other:
      break;
  }
  throw_exchange_error({.cause = original,
                        .hint = "look at the output of the other processes for the first error",
                        .what = "failed to exchange data"},
                       exchange);
}

}  // namespace accelerant::dist
