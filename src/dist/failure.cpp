#include "dist/failure.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <mutex>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/core/error_report.h"

namespace accelerant::dist {
namespace {

using std::chrono::milliseconds;

struct Handled {
  const FailureHandler* owner;
  int64_t rank;
  const Progress* progress;
  Monitor* monitor;
};
std::mutex handled_mutex;
std::vector<Handled> handled;                     // the newest last
std::terminate_handler handler_before = nullptr;  // while there are any

std::string current_message() {
  const std::exception_ptr error = std::current_exception();
  if (!error) return "std::terminate was called without an exception";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

[[noreturn]] void end_process() {
  static std::atomic<bool> ending = false;
  if (ending.exchange(true))  // another thread is at it, and will end this process
    while (true) ::pause();
  const std::string message = current_message();
  Handled who{};
  {
    const std::lock_guard lock(handled_mutex);
    if (handled.empty()) std::abort();
    who = handled.back();
  }
  if (const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE"))
    write_error_report(path,
                       {.message = brief(message), .rank = who.rank, .step = who.progress->step()});
  std::fflush(stdout);
  std::fprintf(stderr, "[rank %lld] terminated: %s\n", static_cast<long long>(who.rank),
               message.c_str());
  std::fflush(stderr);
  // Before the connections close with this process, so that the others can say who was the first.
  if (who.monitor != nullptr) who.monitor->fail(ProcessState::failed, brief(message));
  ::_exit(1);
}

enum class Reason { ended, timeout, other };

bool contains_any(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    if (text.find(part) != std::string::npos) return true;
  return false;
}

// By the texts of Gloo, NCCL and the store.
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

std::string brief(const std::string& message) {
  const size_t end = std::min(message.find("\nException raised from"), message.find("\nframe #"));
  std::string text = message.substr(0, end);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

namespace {

// Writing to a connection whose other end has gone shall be an error of that call. c10d relies on Python, which
// ignores the signal that would end this process instead.
void ignore_broken_pipes() {
  struct sigaction now {};
  if (sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) signal(SIGPIPE, SIG_IGN);
}

}  // namespace

FailureHandler::FailureHandler(int64_t rank, const Progress& progress, Monitor* monitor) {
  ignore_broken_pipes();
  const std::lock_guard lock(handled_mutex);
  if (handled.empty()) handler_before = std::set_terminate(end_process);
  handled.push_back({this, rank, &progress, monitor});
}

FailureHandler::~FailureHandler() {
  const std::lock_guard lock(handled_mutex);
  std::erase_if(handled, [this](const Handled& one) { return one.owner == this; });
  // Unless the program has set one of its own since.
  if (handled.empty() && std::get_terminate() == end_process) std::set_terminate(handler_before);
}

void rethrow_as_error(std::exception_ptr error, const FailedExchange& exchange) {
  std::string original;
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& exception) {
    original = brief(exception.what());
  } catch (...) {
    original = "an exception that is no std::exception";
  }

  const std::string who =
      "Rank " + std::to_string(exchange.rank) + " of " + std::to_string(exchange.size);
  const std::string where =
      std::string(exchange.operation) + ", step " + std::to_string(exchange.step);
  const Reason reason = reason_of(original);
  Monitor* const monitor = exchange.monitor;
  if (monitor != nullptr && reason != Reason::other) monitor->fail(ProcessState::lost, original);
  constexpr milliseconds patience(500);
  switch (reason) {
    case Reason::ended:
      throw Error(ErrorDetails{
          .problem = who + " lost its connection to another process (" + where + ")",
          .expected = "all processes taking part until the end",
          .got = monitor == nullptr ? "a connection that was closed" : monitor->who_ended(patience),
          .hint = "look at the first error of that process; the connection said: " + original});
    case Reason::timeout:
      throw Error(
          ErrorDetails{.problem = who + " waited too long for the others (" + where + ")",
                       .expected = "all processes making the same exchange within the timeout",
                       .got = monitor == nullptr ? "no answer" : monitor->who_is_late(patience),
                       .hint = "if they are only slow, raise the timeout of the process group; the "
                               "connection said: " +
                               original});
    case Reason::other:
      break;
  }
  throw Error(
      ErrorDetails{.problem = who + " failed to exchange data (" + where + ")",
                   .got = original,
                   .hint = "look at the output of the other processes for the first error"});
}

}  // namespace accelerant::dist
