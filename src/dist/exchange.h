// Every exchange between processes goes through here, so that errors and the monitor can name it,
// and tests can make it fail.
#pragma once

#include <exception>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "accelerant/dist/world.h"
#include "accelerant/track/timeline.h"
#include "dist/world_access.h"
#include "watch/progress.h"

namespace accelerant::dist {

// Throws an Error that says which exchange failed and because of whom, as far as known.
[[noreturn]] void rethrow_exchange_error(const World& world, const char* name,
                                         std::exception_ptr error);

// Throws Error inside a join_uneven(), where not all processes may arrive.
void refuse_in_join(const World& world, const char* name);

namespace detail {

template <class F>
auto exchange(const World& world, const char* name, F& f) {
  const auto span = WorldAccess::timeline(world)->span(Phase::exchange, SpanName::lasting(name));
  try {
    failpoint(name);
    return f(WorldAccess::groups(world));
  } catch (const Error&) {
    throw;
  } catch (...) {
    rethrow_exchange_error(world, name, std::current_exception());
  }
}

}  // namespace detail

// Calls f(groups), in which all processes take part, in the same order of calls. The name must be a
// literal, and the same on all processes. For exchanges that processes without inputs follow in a
// join_uneven().
template <class F>
auto exchange_joined(const World& world, const char* name, F&& f) {
  const auto operation = WorldAccess::progress(world).collective(name);
  return detail::exchange(world, name, f);
}

// The same for all other exchanges; throws Error inside a join_uneven().
template <class F>
auto exchange(const World& world, const char* name, F&& f) {
  refuse_in_join(world, name);
  return exchange_joined(world, name, std::forward<F>(f));
}

// The same for messages between two processes.
template <class F>
auto exchange_between_two(const World& world, const char* name, F&& f) {
  const auto operation = WorldAccess::progress(world).wait(name);
  return detail::exchange(world, name, f);
}

}  // namespace accelerant::dist
