// The end of a process by a Preempted that nobody catches.
#pragma once

#include "accelerant/core/error.h"

namespace accelerant {

// From the first call on such an end is that of include/accelerant/core/preempted.h, by a handler of
// std::terminate. Everything else goes to the handler that was in force before. It stays to the end of the
// process: the exception may well come out of main after everything that watched for signals is gone.
// Thread-safe.
void handle_preempted();

// What the handler does: for other handlers that meet a Preempted.
[[noreturn]] void end_preempted(const Preempted& preempted) noexcept;

}  // namespace accelerant
