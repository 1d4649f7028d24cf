#include "paging/pins.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "paging/engine.h"
#include "paging/key_alias.h"
#include "paging/registry.h"
#include "paging/unlocked.h"

namespace accelerant::paging {

void Pins::add(const at::Tensor& tensor, Use use) {
  Registry& registry = Registry::instance();
  Engine::Lock lock(registry.mutex);
  const auto found = registry.units.find(storage_of(tensor));
  if (found == registry.units.end()) return;  // an alias that outlived the Pager
  UnitState& unit = *found->second;
  pins_.reserve(pins_.size() + 1);
  if (const auto& announce = unit.engine->options().before_use) {
    const Unlocked unlocked(lock);
    announce();
  }
  unit.engine->enter(unit, use, lock);
  pins_.push_back({&unit, use});
}

void Pins::release() noexcept {
  if (pins_.empty() || !process_.is_this_one()) return;
  Registry& registry = Registry::instance();
  std::vector<std::shared_ptr<UnitState>> ended;  // whose sources end without the lock
  Engine::Lock lock(registry.mutex);
  for (const auto& [unit, use] : pins_) {
    if (unit->engine != nullptr) {
      unit->engine->leave(*unit, use, lock);
    } else if (--unit->pins == 0) {
      const auto orphan =
          std::ranges::find(registry.orphans, unit, &std::shared_ptr<UnitState>::get);
      if (orphan == registry.orphans.end()) continue;
      ended.push_back(std::move(*orphan));
      registry.orphans.erase(orphan);
    }
  }
  pins_.clear();
}

}  // namespace accelerant::paging
