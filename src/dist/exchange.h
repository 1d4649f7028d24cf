// Every exchange between processes goes through here, so that all of them are named in errors and to the
// monitor, and can be made to fail in tests.
#pragma once

#include <exception>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/dist/world.h"

namespace accelerant::dist {

// Throws an Error that says which exchange failed and why, as far as can be told.
[[noreturn]] void rethrow_exchange_error(const World& world, const char* name,
                                         std::exception_ptr error);

// Calls f(groups), which talks to the other processes and waits for them.
template <class F>
auto exchange(const World& world, const char* name, F&& f) {
  try {
    return std::forward<F>(f)(world.groups());
  } catch (const Error&) {
    throw;
  } catch (...) {
    rethrow_exchange_error(world, name, std::current_exception());
  }
}

}  // namespace accelerant::dist
