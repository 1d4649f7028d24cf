#include "paging/engine.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <system_error>

#include "accelerant/core/error.h"
#include "paging/unlocked.h"

namespace accelerant::paging {

Registry& Registry::instance() {
  static auto* const registry = new Registry();  // never destroyed: parameters may be static
  return *registry;
}

void Engine::wait_while_moving(const UnitState& unit, Lock& lock) const {
  Registry::instance().moved.wait(lock, [&] { return unit.where != UnitState::Where::moving; });
}

void Engine::check_use(const UnitState& unit, Use use) const {
  if (use.writes && unit.source->writes() == Writes::refused) {
    throw Error(ErrorDetails{
        .problem = c10::str("Paged parameters of \"", unit.layout.name, "\" cannot be changed"),
        .expected = c10::str("operators that only read: they come from ", unit.source->describe()),
        .got = "an operator that writes to one",
        .hint = "change them where they come from"});
  }
  if (use.outlives_call && unit.guards == 0) {
    throw Error(ErrorDetails{
        .problem =
            c10::str("A collective cannot use the paged parameters of \"", unit.layout.name, "\""),
        .expected = "memory that stays until the collective is done",
        .got = "memory that comes and goes",
        .hint = "exchange a copy: parameter.clone()"});
  }
  if (side_.exists() && unit.guards == 0 && side_.is_capturing()) {
    throw Error(ErrorDetails{
        .problem =
            c10::str("A CUDA graph cannot use the paged parameters of \"", unit.layout.name, "\""),
        .expected = "memory that stays where it is as long as the graph",
        .got = "memory that comes and goes",
        .hint = "call undo_offload() before, or do not capture"});
  }
}

void Engine::enter(UnitState& unit, Use use, Lock& lock) {
  bool was_absent = false;
  while (true) {
    wait_while_moving(unit, lock);
    check_use(unit, use);  // only now: who moves the unit uses its source, and may replace it
    if (unit.where == UnitState::Where::absent) {
      was_absent = true;
      bring_in(unit, lock);
    } else if (use.writes && unit.lent && !unit.lent->is_writable) {
      make_writable(unit, lock);
    } else {
      break;
    }
  }
  if (was_absent) ++statistics_.misses;
  ++unit.pins;
  if (use.is_guard) ++unit.guards;
  if (use.writes) unit.is_changed = true;
  try {
    if (side_.exists()) wait_on_stream(unit, use, lock);
    touch(unit, lock);
  } catch (...) {
    leave(unit, use, lock);
    throw;
  }
}

// The current stream may not read the unit's memory before its contents have arrived.
void Engine::wait_on_stream(UnitState& unit, Use use, Lock& lock) {
  if (use.is_guard && !unit.has_arrived) {
    // The event is marked again only by who evicts the unit, which is pinned.
    {
      const Unlocked unlocked(lock);
      unit.arrival->synchronize();
    }
    unit.has_arrived = true;
  }
  const c10::Stream stream = side_.current();
  if (std::ranges::find(unit.users, stream) != unit.users.end()) return;
  if (!unit.has_arrived) unit.arrival->block(stream);
  unit.users.push_back(stream);
}

void Engine::touch(UnitState& unit, Lock& lock) {
  unit.last_use = ++uses_;
  unit.is_finished = false;
  if (!schedule_.touch(unit.index)) return;
  // Before the operator is queued: what is evicted for the next unit need not wait for it.
  if (options_.prefetch > 0 && absent_ > 0) prefetch(lock);
}

bool Engine::can_prefetch_inline(const UnitState& unit) const {
  return side_.exists() && unit.source->is_asynchronous();
}

void Engine::prefetch(Lock& lock) {
  if (side_.exists() && side_.is_capturing()) return;
  const std::vector<std::size_t> upcoming =
      schedule_.upcoming(std::min(static_cast<std::size_t>(options_.prefetch), units_.size()));
  std::vector<std::size_t> for_thread;
  for (const std::size_t index : upcoming) {
    UnitState& unit = *units_[index];
    if (unit.engine == nullptr || unit.where != UnitState::Where::absent) continue;
    if (can_prefetch_inline(unit)) {
      prefetch_one(index, lock);
    } else {
      for_thread.push_back(index);
    }
  }
  if (for_thread.empty()) return;
  if (!thread_) {
    try {
      thread_ = {new PrefetchThread([this](std::size_t index) {
                   Lock own(Registry::instance().mutex);
                   prefetch_one(index, own);
                 }),
                 accelerant::detail::DeleteInOwnProcess()};
    } catch (const std::system_error&) {
      return;  // no more threads: units come when they are needed
    }
  }
  thread_->want(for_thread);
}

void Engine::prefetch_one(std::size_t index, Lock& lock) {
  if (index >= units_.size()) return;
  UnitState& unit = *units_[index];
  try {
    if (unit.engine == nullptr || unit.where != UnitState::Where::absent) return;
    if (!make_room_ahead(index, lock) || unit.where != UnitState::Where::absent) return;
    bring_in(unit, lock);
    ++statistics_.prefetches;
  } catch (...) {  // NOLINT(bugprone-empty-catch)
    // The operator that needs the unit tries again and reports the failure.
  }
}

// When each unit is expected next: 0 for the nearest, the number of units for those that are not.
std::vector<std::size_t> Engine::next_turns() const {
  std::vector<std::size_t> turns(units_.size(), units_.size());
  const std::vector<std::size_t> upcoming = schedule_.upcoming(units_.size());
  for (std::size_t turn = 0; turn < upcoming.size(); ++turn) turns[upcoming[turn]] = turn;
  return turns;
}

// What is not expected to be used at all, then what is used last; of several the one whose last use
// is longest ago, those that backward is done with first. The current unit's next operators are not
// among the expected uses: the order has only its first.
UnitState* Engine::choose_victim(const std::vector<std::size_t>& turns, bool spares_current) const {
  UnitState* victim = nullptr;
  std::size_t victims_turn = 0;
  for (const auto& unit : units_) {
    if (unit->where != UnitState::Where::resident || unit->lent || unit->pins > 0) continue;
    if (spares_current && schedule_.is_current(unit->index)) continue;
    const std::size_t turn = turns[unit->index];
    const bool is_better = victim == nullptr || turn > victims_turn ||
                           (turn == victims_turn && (unit->is_finished != victim->is_finished
                                                         ? unit->is_finished
                                                         : unit->last_use < victim->last_use));
    if (!is_better || !can_be_ordered_behind_users(*unit)) continue;
    victim = unit.get();
    victims_turn = turn;
  }
  return victim;
}

// Returns whether there is room now.
bool Engine::make_room(uint64_t bytes, Lock& lock) {
  const auto is_full = [&] { return statistics_.resident_bytes + bytes > options_.budget; };
  if (!is_full()) return true;
  const std::vector<std::size_t> turns = next_turns();
  while (is_full()) {
    UnitState* const victim = choose_victim(turns, /*spares_current=*/false);
    if (victim == nullptr) return false;
    evict(*victim, lock);
  }
  return true;
}

// The same for a unit that is not needed yet: does not evict what is needed before it.
bool Engine::make_room_ahead(std::size_t unit, Lock& lock) {
  const uint64_t bytes = units_[unit]->layout.bytes;
  const auto is_full = [&] { return statistics_.resident_bytes + bytes > options_.budget; };
  if (!is_full()) return true;
  const std::vector<std::size_t> turns = next_turns();
  while (is_full()) {
    UnitState* const victim = choose_victim(turns, /*spares_current=*/true);
    if (victim == nullptr || turns[victim->index] < turns[unit]) return false;
    evict(*victim, lock);
  }
  return true;
}

void Engine::leave(UnitState& unit, Use use, Lock& lock) noexcept {
  --unit.pins;
  if (use.is_guard) --unit.guards;
  if (use.writes) unit.is_changed = true;
  if (statistics_.resident_bytes <= options_.budget) return;
  try {
    if (!side_.exists() || !side_.is_capturing()) make_room(0, lock);
  } catch (...) {  // NOLINT(bugprone-empty-catch)
    // Changes could not be stored. The unit stays, and the next attempt may succeed.
  }
}

void Engine::begin(std::string_view phase) {
  verify();
  const std::lock_guard lock(Registry::instance().mutex);
  schedule_.begin(phase);
}

void Engine::end() {
  const std::lock_guard lock(Registry::instance().mutex);
  schedule_.end();
}

void Engine::evict_all() {
  Lock lock(Registry::instance().mutex);
  if (thread_) {  // or it would bring back what leaves
    const Unlocked unlocked(lock);
    thread_->cancel();
  }
  for (const auto& unit : units_) {
    wait_while_moving(*unit, lock);
    if (unit->where != UnitState::Where::resident || unit->lent || unit->pins > 0) continue;
    if (!can_be_ordered_behind_users(*unit)) continue;
    evict(*unit, lock);
  }
  pool_.trim();
}

PagerStatistics Engine::statistics() const {
  const std::lock_guard lock(Registry::instance().mutex);
  return statistics_;
}

void Engine::reset_statistics() {
  const std::lock_guard lock(Registry::instance().mutex);
  statistics_ = {.resident_bytes = statistics_.resident_bytes,
                 .peak_bytes = statistics_.resident_bytes,
                 .lent_bytes = statistics_.lent_bytes};
}

}  // namespace accelerant::paging
