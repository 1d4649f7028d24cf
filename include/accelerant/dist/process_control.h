// Coordination of processes: waiting for each other, taking turns, dividing values, logging.
//
//   dist::wait_for_everyone(world);
//   auto dataset = dist::main_process_first(world, [&] { return load("data"); });  // fills a cache
//   auto mine = dist::split_between(prompts, world.rank(), world.size());
//   dist::log_on_main_process(world, LogLevel::info, "training starts");
//   dist::log_in_order(world, LogLevel::info, "my shard has " + std::to_string(rows) + " rows");
//
// Everything here runs over the CPU; GPUs are not involved.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerant/core/log.h"
#include "accelerant/dist/world.h"

namespace accelerant::dist {

// --- Waiting -------------------------------------------------------------------------------------

// Returns when every process has called it. Throws Error on all of them if some do not arrive
// within the World's timeout, or have died; it names the missing ones and how long it waited. The
// message contains `name`.
void wait_for_everyone(const World& world, const std::string& name = {});

namespace detail {

// Waits until all have called it; processes that go first call it when they are done. Throws Error
// if one failed.
void await_turn(const World& world, const char* name);
// Reports that this process went first and failed.
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

// Calls f on the main process, then on all others, and returns its result. Use it when one process
// prepares something that the others then find: a download, a cache. The others wait for at most
// the World's timeout. If f throws on the main process, the exception propagates there; the others
// get an Error with its message and do not call f.
template <class F>
auto main_process_first(const World& world, F&& f) {
  return detail::take_turns(world, "main_process_first", world.environment().is_main_process(), f);
}

// The same, with one process on each machine going first, for machines that do not share files. All
// wait until each of those is done.
template <class F>
auto local_main_process_first(const World& world, F&& f) {
  return detail::take_turns(world, "local_main_process_first",
                            world.environment().is_local_main_process(), f);
}

// --- Dividing values -----------------------------------------------------------------------------
//
// Like Accelerate's split_between_processes: in order, with one more value for each of the first
// `length % num_processes` processes. Without padding some may get nothing.

// Part of a sequence: positions begin to end - 1, then the sequence's last element `padding` times.
struct Part {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t padding = 0;
};

// The part of process `rank` of `num_processes`. With padding, all parts have the same length; an
// empty sequence has nothing to pad with, so its parts are empty.
Part part_of(int64_t length, int64_t rank, int64_t num_processes, bool apply_padding);

// Splits along the first dimension.
at::Tensor split_between(const at::Tensor& values, int64_t rank, int64_t num_processes,
                         bool apply_padding = false);

template <class T>
std::vector<T> split_between(const std::vector<T>& values, int64_t rank, int64_t num_processes,
                             bool apply_padding = false) {
  const Part part =
      part_of(static_cast<int64_t>(values.size()), rank, num_processes, apply_padding);
  std::vector<T> result(values.begin() + part.begin, values.begin() + part.end);
  for (int64_t i = 0; i < part.padding; ++i) result.push_back(values.back());
  return result;
}

namespace detail {

inline int64_t length_of(const at::Tensor& values) { return values.size(0); }

template <class T>
int64_t length_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size());
}

// Throws Error: the values of a map have different lengths.
[[noreturn]] void refuse_lengths(int64_t first, int64_t other);

}  // namespace detail

// All values of a map must have the same length.
template <class Key, class T>
std::map<Key, T> split_between(const std::map<Key, T>& values, int64_t rank, int64_t num_processes,
                               bool apply_padding = false) {
  std::map<Key, T> result;
  for (const auto& [key, value] : values) {
    const int64_t first = detail::length_of(values.begin()->second);
    if (detail::length_of(value) != first) detail::refuse_lengths(first, detail::length_of(value));
    result.emplace(key, split_between(value, rank, num_processes, apply_padding));
  }
  return result;
}

// --- Logging -------------------------------------------------------------------------------------
//
// Logs on one process, or on all in rank order. In contrast, log() itself logs on every process at
// any time.

// Only on the main process, like Accelerate's main_process_only=True; or only on that of each
// machine.
void log_on_main_process(const World& world, LogLevel level, std::string_view message);
void log_on_local_main_process(const World& world, LogLevel level, std::string_view message);

// One process after another, like Accelerate's in_order=True. All must call it, whatever they log.
void log_in_order(const World& world, LogLevel level, std::string_view message);

}  // namespace accelerant::dist
