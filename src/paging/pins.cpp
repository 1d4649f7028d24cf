#include "paging/pins.h"

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
  if (pins_.empty()) return;
  Engine::Lock lock(Registry::instance().mutex);
  for (const auto& [unit, use] : pins_) {
    if (unit->engine != nullptr) {
      unit->engine->leave(*unit, use, lock);
    } else {
      --unit->pins;
    }
  }
  pins_.clear();
}

}  // namespace accelerant::paging
