#include "accelerant/core/error.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <utility>

#include "core/preempted_handler.h"
#include "core/signal_name.h"

namespace accelerant {
namespace {

std::terminate_handler handler_before_preempted = nullptr;

[[noreturn]] void end_by_preempted() {
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const Preempted& preempted) {
      end_preempted(preempted);
    } catch (...) {  // for the handler before, which asks for it too
    }
  }
  if (handler_before_preempted != nullptr) handler_before_preempted();
  std::abort();
}

}  // namespace

Preempted::Preempted(int signal, std::string checkpoint)
    : signal_(signal),
      checkpoint_(std::move(checkpoint)),
      text_(signal_name(signal) + " received: state saved in " + checkpoint_) {}

void handle_preempted() {
  static std::once_flag once;
  std::call_once(once, [] { handler_before_preempted = std::set_terminate(end_by_preempted); });
}

void end_preempted(const Preempted& preempted) noexcept {
  std::cout.flush();  // a program may have made it independent of stdout
  std::fflush(stdout);
  std::fprintf(stderr, "accelerant: %s, exit code %d\n", preempted.what(), kPreemptedExitCode);
  std::fflush(stderr);
  ::_exit(kPreemptedExitCode);
}

}  // namespace accelerant
