// Waiting for other processes.
//
//   dist::wait_for_everyone(world);
//   auto dataset = dist::main_process_first(world, [&] { return load("data"); });  // one fills the cache
//
// Everything here goes over the CPU: no GPU is touched.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "accelerant/dist/world.h"

namespace accelerant::dist {

// Returns when every process has called it. Throws Error on all of them if some do not come within
// the World's timeout, or have died: it names those missing and how long it waited. `name` appears in that.
void wait_for_everyone(const World& world, const std::string& name = {});

namespace detail {

// Waits until all have called it, those who go first when they are done. Throws Error if one failed.
void await_turn(const World& world, const char* name);
// This process went first and failed.
void report_failed_turn(const World& world, const char* name, std::exception_ptr error);

template <class F>
auto take_turns(const World& world, const char* name, bool goes_first, F& f) {
  if (world.size() == 1) return f();
  if (!goes_first) {
    await_turn(world, name);
    return f();
  }
  using Result = std::invoke_result_t<F&>;
  std::conditional_t<std::is_void_v<Result>, bool, std::optional<std::decay_t<Result>>> result{};
  try {
    if constexpr (std::is_void_v<Result>) {
      f();
    } else {
      result.emplace(f());
    }
  } catch (...) {
    report_failed_turn(world, name, std::current_exception());
    throw;
  }
  await_turn(world, name);
  if constexpr (!std::is_void_v<Result>) return *std::move(result);
}

}  // namespace detail

// Calls f on the main process, then on all others, and returns what it returns. For what one process
// prepares and the others then find: a download, a cache. The others wait, at most for the World's timeout. If f
// throws on the main process, the exception goes on there, and the others get an Error with its message
// and do not call f.
template <class F>
auto main_process_first(const World& world, F&& f) {
  return detail::take_turns(world, "main_process_first", world.environment().is_main_process(), f);
}

// The same with one process on each machine going first, where the machines share no files. All wait
// until each of those is done.
template <class F>
auto local_main_process_first(const World& world, F&& f) {
  return detail::take_turns(world, "local_main_process_first",
                            world.environment().is_local_main_process(), f);
}

}  // namespace accelerant::dist
