// How this process ends by an uncaught exception, by std::terminate, or because it is stuck.
// Destructors do not run in these cases: they might wait for other processes.
//
// The library sets one std::terminate handler, with the first BeforeEnd, EndHandler or call of
// handle_preempted(), and keeps it until the process ends. The handler does, in this order:
//
// 1. Run the work of every BeforeEnd, the newest first.
// 2. For a Preempted: the newest EndHandler reports that this process stops as requested; one line
//    goes to standard error; exit code 75.
// 3. For anything else, including std::terminate without an exception: call the newest among the
//    EndHandlers and the handlers that the program has set. An EndHandler reports that this process
//    failed; exit code 1. If a handler of the program calls the handler that it replaced, which is
//    the library's, the next older one is called.
// 4. If there is none: abort, as the default handler does.
//
// A handler that the program sets later replaces all this, until the library's next BeforeEnd,
// EndHandler or handle_preempted(). If several threads terminate, one ends the process and the
// others wait.
//
// A forked child ends as if the library were not there: the works and the EndHandlers of its parent
// do not count, only those that it makes itself.
#pragma once

#include <functional>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/core/error.h"

namespace accelerant {

// While it lives, `work` runs before such an end; use it for work that must not be cut off. `work`
// must not throw. Thread-safe.
class BeforeEnd {
 public:
  explicit BeforeEnd(std::function<void()> work);
  ~BeforeEnd();
  BeforeEnd(const BeforeEnd&) = delete;
  BeforeEnd& operator=(const BeforeEnd&) = delete;

 private:
  detail::OwnProcess process_;
};

enum class Ending { preempted, failed };

// While it lives, `tell` reports such an end to others. `tell` may ask std::current_exception() for
// the reason. Once it runs, the destructor blocks until the process ends. Thread-safe.
class EndHandler {
 public:
  explicit EndHandler(std::function<void(Ending)> tell);
  ~EndHandler();
  EndHandler(const EndHandler&) = delete;
  EndHandler& operator=(const EndHandler&) = delete;

 private:
  detail::OwnProcess process_;
};

// Sets the handler. For code that may throw a Preempted, which may leave main after everything that
// watched for signals is gone. Thread-safe.
void handle_preempted();

// Prints the line on standard error and exits with code 75. For code that catches a Preempted.
[[noreturn]] void end_preempted(const Preempted& preempted) noexcept;

// Ends the process at once, even if its threads are stuck in waits that cannot be cancelled.
// Flushes stdout and stderr.
[[noreturn]] void end_process(int exit_code) noexcept;

}  // namespace accelerant
