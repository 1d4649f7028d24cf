#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "compat/device.h"
#include "compat/storage_memory.h"
#include "paging/engine.h"
#include "paging/host_memory.h"
#include "paging/unlocked.h"

namespace accelerant::paging {
namespace {

// Memory in a block. It keeps the block alive, for tensors that outlive the Pager.
c10::DataPtr memory_in(const at::Tensor& block, std::size_t offset) {
  c10::Storage owner = block.storage();
  auto* const address = static_cast<std::byte*>(owner.mutable_data()) + offset;
  const c10::Device device = block.device();
  return {address, owner.unsafeReleaseStorageImpl(),
          [](void* owned) {
            c10::intrusive_ptr<c10::StorageImpl>::reclaim(static_cast<c10::StorageImpl*>(owned));
          },
          device};
}

// The time in which a thread moves a unit. Whatever happens in it, others do not wait for ever.
class MoveScope {
 public:
  MoveScope(UnitState& unit, UnitState::Where unless_done) : unit_(unit), end_(unless_done) {
    unit_.where = UnitState::Where::moving;
  }
  ~MoveScope() {
    unit_.where = end_;
    Registry::instance().moved.notify_all();
  }
  MoveScope(const MoveScope&) = delete;
  MoveScope& operator=(const MoveScope&) = delete;

  void done(UnitState::Where end) { end_ = end; }

 private:
  UnitState& unit_;
  UnitState::Where end_;
};

}  // namespace

// If the pool cannot take the block, it is freed.
void Engine::give_back(at::Tensor block) noexcept {
  try {
    failpoint("paging.give_back");
    const SideStream::Scope scope(side_);
    pool_.give_back(std::move(block));
  } catch (...) {  // NOLINT(bugprone-empty-catch)
  }
}

void Engine::install(UnitState& unit) const {
  for (std::size_t i = 0; i < unit.storages.size(); ++i) {
    compat::give_memory(*unit.storages[i].unsafeGetStorageImpl(),
                        unit.lent ? c10::DataPtr(unit.lent->parts[i], options_.device)
                                  : memory_in(unit.block, unit.layout.parts[i].offset));
  }
}

void Engine::take_away(UnitState& unit) const {
  for (std::size_t i = 0; i < unit.storages.size(); ++i) {
    compat::take_memory(*unit.storages[i].unsafeGetStorageImpl(), unit.texts[i]);
  }
}

void Engine::borrow(UnitState& unit) {
  if (!options_.zero_copy || !options_.device.is_cpu()) return;
  unit.lent = unit.source->lend(unit.layout);
  if (!unit.lent) return;
  install(unit);
  unit.where = UnitState::Where::resident;
  --absent_;
  statistics_.lent_bytes += unit.layout.bytes;
}

void Engine::bring_in(UnitState& unit, Lock& lock) {
  const std::size_t bytes = unit.layout.bytes;
  bool is_counted = false;
  MoveScope move(unit, UnitState::Where::absent);
  try {
    if (!make_room(bytes, lock)) ++statistics_.over_budget;
    statistics_.resident_bytes += bytes;
    statistics_.peak_bytes = std::max(statistics_.peak_bytes, statistics_.resident_bytes);
    is_counted = true;
    {
      const Unlocked unlocked(lock);
      const OrdinaryMode ordinary;
      const SideStream::Scope scope(side_);
      unit.block = pool_.take(bytes);
      failpoint("paging.fetch");
      unit.source->fetch(unit.layout, unit.block);
      side_.mark(unit.arrival);
    }
    install(unit);
  } catch (...) {
    if (unit.block.defined()) give_back(std::exchange(unit.block, at::Tensor()));
    if (is_counted) statistics_.resident_bytes -= bytes;
    ++statistics_.failures;
    throw;
  }
  --absent_;
  ++statistics_.fetches;
  statistics_.fetched_bytes += bytes;
  unit.has_arrived = !side_.exists();
  unit.users.clear();
  unit.last_use = ++uses_;
  move.done(UnitState::Where::resident);
}

// Work that is part of a CUDA graph cannot be waited for, and an attempt would break the capture,
// which may be another thread's.
bool Engine::can_be_ordered_behind_users(const UnitState& unit) const {
  return std::ranges::none_of(unit.users, compat::is_captured);
}

void Engine::order_behind_users(UnitState& unit) {
  for (const c10::Stream& stream : unit.users) side_.wait_for(stream);
  unit.users.clear();
}

void Engine::evict(UnitState& unit, Lock& lock) {
  MoveScope move(unit, UnitState::Where::resident);
  try {
    take_away(unit);
    store_changes(unit, lock);
  } catch (...) {  // the only copy of the values is here
    install(unit);
    throw;
  }
  give_back(std::exchange(unit.block, at::Tensor()));
  statistics_.resident_bytes -= unit.layout.bytes;
  ++statistics_.evictions;
  ++absent_;
  move.done(UnitState::Where::absent);
}

// Afterwards the side stream is behind all that used the unit.
void Engine::store_changes(UnitState& unit, Lock& lock) {
  order_behind_users(unit);
  if (!unit.is_changed) return;
  unit.is_changed = false;
  try {
    const Unlocked unlocked(lock);
    store(unit);
  } catch (...) {
    unit.is_changed = true;
    side_.mark(unit.arrival);
    unit.has_arrived = !side_.exists();
    throw;
  }
  ++statistics_.write_backs;
  statistics_.written_bytes += unit.layout.bytes;
}

void Engine::store(UnitState& unit) {
  const OrdinaryMode ordinary;
  const SideStream::Scope scope(side_);
  failpoint("paging.store");
  if (unit.source->writes() == Writes::stored) return unit.source->store(unit.layout, unit.block);
  auto home = std::make_shared<HostMemory>(HostMemory::allocate(unit.layout, unit.block.device()));
  home->store(unit.layout, unit.block);
  unit.source = std::move(home);
}

// Replaces memory that the unit's source lends for reading by memory of its own.
void Engine::make_writable(UnitState& unit, Lock& lock) {
  const MoveScope move(unit, UnitState::Where::resident);
  std::shared_ptr<HostMemory> home;
  {
    const Unlocked unlocked(lock);
    const OrdinaryMode ordinary;
    home = std::make_shared<HostMemory>(HostMemory::allocate(unit.layout, options_.device));
    unit.source->fetch(unit.layout, home->block());
  }
  std::optional<LentMemory> lent = home->lend(unit.layout);
  // Operators that are reading the old memory may go on.
  unit.retired.emplace_back(unit.source, unit.lent->owner);
  unit.source = std::move(home);
  unit.lent = std::move(lent);
  install(unit);
}

}  // namespace accelerant::paging
