#include "core/before_end.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

namespace accelerant {
namespace {

std::terminate_handler handler_before = nullptr;
std::mutex mutex;

// Never destroyed: the end may come at any time.
std::map<const BeforeEnd*, std::function<void()>>& works() {
  static auto* const all = new std::map<const BeforeEnd*, std::function<void()>>();
  return *all;
}

[[noreturn]] void end_process() {
  static std::atomic<bool> ending = false;
  if (!ending.exchange(true)) {
    // Held meanwhile: what the works belong to must not go.
    const std::lock_guard lock(mutex);
    for (const auto& [owner, work] : works()) work();
  }
  if (handler_before != nullptr) handler_before();
  std::abort();
}

}  // namespace

BeforeEnd::BeforeEnd(std::function<void()> work) {
  static std::once_flag once;
  std::call_once(once, [] { handler_before = std::set_terminate(end_process); });
  const std::lock_guard lock(mutex);
  works().emplace(this, std::move(work));
}

BeforeEnd::~BeforeEnd() {
  const std::lock_guard lock(mutex);
  works().erase(this);
}

}  // namespace accelerant
