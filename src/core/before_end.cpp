#include "core/before_end.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

namespace accelerant {
namespace {

std::terminate_handler handler_before = nullptr;
pid_t owner = 0;
std::mutex mutex;

// Never destroyed: the end may come at any time.
std::map<const BeforeEnd*, std::function<void()>>& works() {
  static auto* const all = new std::map<const BeforeEnd*, std::function<void()>>();
  return *all;
}

[[noreturn]] void end_process() {
  static std::atomic<bool> ending = false;
  // A child that was forked has none of the threads that the works wait for.
  if (!ending.exchange(true) && ::getpid() == owner) {
    // Held meanwhile: what the works belong to must not go.
    const std::lock_guard lock(mutex);
    for (const auto& [whose, work] : works()) work();
  }
  if (handler_before != nullptr) handler_before();
  std::abort();
}

}  // namespace

BeforeEnd::BeforeEnd(std::function<void()> work) {
  static std::once_flag once;
  std::call_once(once, [] {
    owner = ::getpid();
    handler_before = std::set_terminate(end_process);
  });
  const std::lock_guard lock(mutex);
  works().emplace(this, std::move(work));
}

BeforeEnd::~BeforeEnd() {
  const std::lock_guard lock(mutex);
  works().erase(this);
}

}  // namespace accelerant
