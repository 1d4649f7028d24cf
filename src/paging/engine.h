// The implementation of a Pager: moves units between their sources and blocks of memory.
//
//   attaching.cpp   parameters: attaching and detaching them, finding those that left
//   engine.cpp      uses, budget, what to evict and what to fetch ahead
//   transfers.cpp   one unit: bringing it in, evicting it, storing its changes
//
// While a unit is moved, its state is `moving`, the mutex is released, and whoever needs it waits.
// A thread that moves a unit never waits for another unit, so threads cannot wait for each other.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "accelerant/core/detail/own_process.h"
#include "paging/attachment.h"
#include "paging/block_pool.h"
#include "paging/pager.h"
#include "paging/pins.h"
#include "paging/prefetch_thread.h"
#include "paging/registry.h"
#include "paging/schedule.h"
#include "paging/side_stream.h"

namespace accelerant::paging {

class Engine {
 public:
  using Lock = std::unique_lock<std::mutex>;  // of the registry's mutex

  Engine(const std::vector<UnitPlan>& plans, const PagerOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Makes a unit's memory present and pins it.
  void enter(UnitState& unit, Use use, Lock& lock);

  // Unpins it, and evicts if the budget is exceeded.
  void leave(UnitState& unit, Use use, Lock& lock) noexcept;

  void begin(std::string_view phase);
  void end();
  void verify() const;
  void evict_all();
  void detach(std::optional<c10::Device> device);

  PagerStatistics statistics() const;
  void reset_statistics();
  const std::vector<UnitLayout>& layouts() const { return layouts_; }
  std::optional<std::size_t> unit_of(const at::Tensor& parameter) const;
  const PagerOptions& options() const { return options_; }

 private:
  // --- engine.cpp ---
  void check_use(const UnitState& unit, Use use) const;
  void wait_while_moving(const UnitState& unit, Lock& lock) const;
  void wait_on_stream(UnitState& unit, Use use, Lock& lock);
  void touch(UnitState& unit, Lock& lock);
  void prefetch(Lock& lock);
  void prefetch_one(std::size_t unit, Lock& lock);
  bool can_prefetch_inline(const UnitState& unit) const;
  std::vector<std::size_t> next_turns() const;
  UnitState* choose_victim(const std::vector<std::size_t>& turns, bool spares_current) const;
  bool make_room(uint64_t bytes, Lock& lock);
  bool make_room_ahead(std::size_t unit, Lock& lock);

  // --- transfers.cpp ---
  void bring_in(UnitState& unit, Lock& lock);
  void evict(UnitState& unit, Lock& lock);
  void store(UnitState& unit);
  void store_changes(UnitState& unit, Lock& lock);
  void make_writable(UnitState& unit, Lock& lock);
  void borrow(UnitState& unit);
  void install(UnitState& unit) const;
  void take_away(UnitState& unit) const;
  void order_behind_users(UnitState& unit);
  bool can_be_ordered_behind_users(const UnitState& unit) const;
  void give_back(at::Tensor block) noexcept;

  // --- attaching.cpp ---
  void attach(PlannedUnit& planned);
  std::vector<std::size_t> owners_of(const UnitState& unit, bool counts_living) const;
  bool is_unused(const UnitState& unit) const;
  void detach(UnitState& unit, std::optional<c10::Device> device, Lock& lock);
  void release(UnitState& unit, Lock& lock);
  void abandon() noexcept;

  PagerOptions options_;
  SideStream side_;
  BlockPool pool_;
  std::vector<UnitLayout> layouts_;
  std::vector<std::shared_ptr<UnitState>> units_;
  std::vector<std::vector<AttachedParameter>> parameters_;  // by unit

  Schedule schedule_;
  uint64_t uses_ = 0;
  uint64_t absent_ = 0;  // units without memory
  PagerStatistics statistics_;
  std::unique_ptr<PrefetchThread, accelerant::detail::DeleteInOwnProcess> thread_;
};

}  // namespace accelerant::paging
