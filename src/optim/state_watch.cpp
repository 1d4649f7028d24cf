#include "optim/state_watch.h"

#include <map>
#include <mutex>
#include <vector>

namespace accelerant::optim::detail {
namespace {

struct Watchers {
  std::mutex mutex;
  std::multimap<const torch::optim::Optimizer*, StateWatcher*> by_optimizer;
};

Watchers& watchers() {
  static auto* const all = new Watchers;  // outlives watchers in static storage
  return *all;
}

// The caller uses them without the lock: a watcher may wait for a device.
std::vector<StateWatcher*> watchers_of(const torch::optim::Optimizer& optimizer) {
  const std::scoped_lock lock(watchers().mutex);
  std::vector<StateWatcher*> found;
  const auto [begin, end] = watchers().by_optimizer.equal_range(&optimizer);
  for (auto entry = begin; entry != end; ++entry) found.push_back(entry->second);
  return found;
}

}  // namespace

StateWatcher::StateWatcher(const torch::optim::Optimizer& optimizer) : optimizer_(&optimizer) {
  const std::scoped_lock lock(watchers().mutex);
  watchers().by_optimizer.emplace(optimizer_, this);
}

StateWatcher::~StateWatcher() {
  const std::scoped_lock lock(watchers().mutex);
  auto& all = watchers().by_optimizer;
  const auto [begin, end] = all.equal_range(optimizer_);
  for (auto entry = begin; entry != end; ++entry) {
    if (entry->second != this) continue;
    all.erase(entry);
    return;
  }
}

void announce_reading(const torch::optim::Optimizer& optimizer) {
  for (StateWatcher* watcher : watchers_of(optimizer)) watcher->before_state_is_read();
}

void announce_written(const torch::optim::Optimizer& optimizer) {
  for (StateWatcher* watcher : watchers_of(optimizer)) watcher->after_state_was_written();
}

std::optional<c10::Device> home_of_state(const torch::optim::Optimizer& optimizer) {
  for (const StateWatcher* watcher : watchers_of(optimizer)) {
    if (const auto home = watcher->home_of_state()) return home;
  }
  return std::nullopt;
}

}  // namespace accelerant::optim::detail
