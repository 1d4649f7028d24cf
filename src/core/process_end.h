// The end of this process by an exception that nobody catches, by std::terminate itself, or because
// it is stuck. Destructors do not run then: they might wait for other processes.
//
// The library sets one handler of std::terminate, with the first BeforeEnd or EndHandler or the
// first call of handle_preempted, and leaves it to the end of the process. It does, in this order:
//
// 1. The work of every BeforeEnd.
// 2. A Preempted: the newest EndHandler tells that this process stops as it was asked to; one line
//    goes to standard error; exit code 75.
// 3. Anything else, std::terminate without an exception too: the newest of all EndHandlers and of
//    the handlers that the program has set has its turn. An EndHandler tells that this process
//    failed; exit code 1. A handler of the program is called. If it calls the one that it took the
//    place of, which is the library's, the next older one has its turn.
// 4. Where there is none: abort, as the handler does that every program begins with.
//
// A handler that the program sets takes the place of all this, until the library's next BeforeEnd,
// EndHandler or handle_preempted(). Of several threads that come here one ends the process and the
// others wait.
#pragma once

#include <functional>

#include "accelerant/core/error.h"

namespace accelerant {

// While it lives, `work`, which must not be cut off, is done before such an end. Not in children of
// this process (fork), which have none of the threads that it may wait for. `work` must not throw.
// Thread-safe.
class BeforeEnd {
 public:
  explicit BeforeEnd(std::function<void()> work);
  ~BeforeEnd();
  BeforeEnd(const BeforeEnd&) = delete;
  BeforeEnd& operator=(const BeforeEnd&) = delete;
};

enum class Ending { preempted, failed };

// While it lives, such an end is told to others. `tell` may ask std::current_exception() for the
// reason. Once it runs, the destructor waits for the end of the process. Thread-safe.
class EndHandler {
 public:
  explicit EndHandler(std::function<void(Ending)> tell);
  ~EndHandler();
  EndHandler(const EndHandler&) = delete;
  EndHandler& operator=(const EndHandler&) = delete;
};

// Sets the handler, for code after which a Preempted may come: out of main, it may well be, when
// everything that watched for signals is gone. Thread-safe.
void handle_preempted();

// The line on standard error and exit code 75, for code that catches a Preempted to end by it.
[[noreturn]] void end_preempted(const Preempted& preempted) noexcept;

// Ends the process at once, also where its threads are stuck in waits that cannot be cancelled.
// Flushes stdout and stderr.
[[noreturn]] void end_process(int exit_code) noexcept;

}  // namespace accelerant
