#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "compat/storage_memory.h"
#include "core/texts.h"
#include "paging/device_map/presence.h"
#include "paging/engine.h"
#include "paging/gradient_hook.h"
#include "paging/host_memory.h"
#include "paging/interception.h"
#include "paging/key_alias.h"
#include "paging/unlocked.h"

namespace accelerant::paging {
namespace {

PagerOptions checked(PagerOptions options) {
  options.device =
      present_device(options.device, c10::str("Parameters cannot be paged on ", options.device));
  if (options.prefetch < 0) {
    throw Error(ErrorDetails{.problem = "prefetch is a number of units",
                             .expected = "0 or more",
                             .got = c10::str(options.prefetch),
                             .hint = "use 0 to fetch units only when they are needed"});
  }
  return options;
}

// Free blocks are kept within the budget, but at least one of any size.
uint64_t pool_limit(const std::vector<PlannedUnit>& units, const PagerOptions& options) {
  uint64_t limit = options.budget;
  for (const PlannedUnit& unit : units) limit = std::max<uint64_t>(limit, unit.layout.bytes);
  return limit;
}

std::string absence_text(const std::string& name) {
  return c10::str("The memory of the paged parameter \"", name,
                  "\" is absent: expected an operator, got direct access to its address; use an "
                  "operator, or hold align_module_device(module, std::nullopt) meanwhile, with "
                  "{.writes = false} if it is only read");
}

std::string end_text(const std::string& name, c10::Device device) {
  return c10::str("The memory of \"", name, "\" on ", device,
                  " ended with its offload: expected that nothing uses it any more, got an alias "
                  "(a view, a result of detach(), saved for a backward that has not run) or a "
                  "parameter that could not be given memory; run backward and drop aliases before "
                  "undo_offload()");
}

// The memory of a tensor that nothing else refers to.
c10::DataPtr memory_of(const at::Tensor& tensor) {
  return std::move(tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks());
}

std::shared_ptr<Source> source_of_values(const PlannedUnit& unit, c10::Device device) {
  at::Tensor block = HostMemory::allocate(unit.layout, device);
  for (std::size_t i = 0; i < unit.storages.size(); ++i) {
    const UnitPart& part = unit.layout.parts[i];
    block.narrow(0, static_cast<int64_t>(part.offset), static_cast<int64_t>(part.bytes))
        .copy_(bytes_of(unit.storages[i]));
  }
  return std::make_shared<HostMemory>(std::move(block));
}

}  // namespace

Engine::Engine(const std::vector<UnitPlan>& plans, const PagerOptions& options)
    : options_(checked(options)), side_(options_.device), pool_(options_.device, 0) {
  start_interception();
  const OrdinaryMode ordinary;
  std::vector<PlannedUnit> units = lay_out(plans);
  pool_.set_limit(pool_limit(units, options_));
  try {
    for (PlannedUnit& unit : units) attach(unit);
  } catch (...) {
    try {
      detach(std::nullopt);
    } catch (const std::exception&) {
      abandon();
    }
    throw;
  }
}

void Engine::attach(PlannedUnit& planned) {
  if (!planned.source) planned.source = source_of_values(planned, options_.device);
  auto unit = std::make_shared<UnitState>();
  unit->engine = this;
  unit->index = units_.size();
  unit->layout = std::move(planned.layout);
  unit->source = std::move(planned.source);
  for (std::size_t i = 0; i < planned.storages.size(); ++i) {
    const c10::Storage& before = planned.storages[i];
    const bool stays = before.device() == options_.device;
    unit->storages.push_back(stays ? before
                                   : empty_storage(unit->layout.parts[i].bytes, options_.device));
    unit->storages.back().unsafeGetStorageImpl()->set_resizable(false);
    unit->texts.push_back(absence_text(unit->layout.parts[i].names.front()));
  }
  planned.storages.clear();

  Lock lock(Registry::instance().mutex);
  units_.push_back(unit);
  layouts_.push_back(unit->layout);
  parameters_.push_back(std::move(planned.parameters));
  ++absent_;
  for (const c10::Storage& storage : unit->storages) {
    Registry::instance().units[storage.unsafeGetStorageImpl()] = unit.get();
  }
  take_away(*unit);
  borrow(*unit);
  lock.unlock();  // operators on parameters take it

  for (AttachedParameter& parameter : parameters_.back()) {
    at::Tensor tensor = parameter.lock();
    put_on_storage(tensor, unit->storages[parameter.part], /*is_paged=*/true);
    parameter.gradient_hook = watch_gradient(tensor, unit);
  }
}

void Engine::verify() const {
  std::vector<std::string> left;
  {
    const std::lock_guard lock(Registry::instance().mutex);
    for (std::size_t i = 0; i < units_.size(); ++i) {
      const UnitState& unit = *units_[i];
      if (unit.engine == nullptr) continue;  // given up by a detach() that then failed
      for (const AttachedParameter& parameter : parameters_[i]) {
        if (!is_attached(parameter, unit)) left.push_back("\"" + parameter.name + "\"");
      }
    }
  }
  if (left.empty()) return;
  throw Error(ErrorDetails{
      .problem = "Paged parameters were given other memory",
      .expected = "parameters that change only in place while they are paged",
      .got = c10::str("new memory for ", list_text(left, 5)),
      .hint = "set_data(), set_(), and Module::to() with another type or device replace a "
              "parameter's memory: do that before the model is prepared or offloaded, or after "
              "undo_offload(); to change values, use copy_()"});
}

std::optional<std::size_t> Engine::unit_of(const at::Tensor& parameter) const {
  if (!parameter.defined() || !has_paging_key(parameter)) return std::nullopt;
  const std::lock_guard lock(Registry::instance().mutex);
  const auto& units = Registry::instance().units;
  const auto found = units.find(storage_of(parameter));
  if (found == units.end() || found->second->engine != this) return std::nullopt;
  return found->second->index;
}

void Engine::detach(std::optional<c10::Device> device) {
  if (device) device = present_device(*device, "Parameters of a Pager cannot be given up");
  thread_.reset();
  Lock lock(Registry::instance().mutex);
  schedule_ = {};
  for (const auto& unit : units_) {
    if (unit->engine == nullptr) continue;
    wait_while_moving(*unit, lock);
    if (unit->pins > 0 && !is_unused(*unit)) {
      throw Error(ErrorDetails{
          .problem = "A Pager cannot give up parameters that are in use",
          .expected = "no operator that uses them, and no scope that holds them",
          .got = c10::str(counted(unit->pins, "user"), " of \"", unit->layout.name, "\""),
          .hint = "end every align_module_device(), and let operators return, before that"});
    }
    if (!can_be_ordered_behind_users(*unit)) {
      throw Error(ErrorDetails{
          .problem = "A Pager cannot give up parameters while a CUDA graph is captured",
          .expected = c10::str("no capture on a stream that has used \"", unit->layout.name, "\""),
          .got = "one that has not ended",
          .hint = "end the offload before the capture or after it"});
    }
    detach(*unit, device, lock);
  }
  units_.clear();
  parameters_.clear();
  layouts_.clear();
  absent_ = 0;
}

// How many owners of each storage there are besides aliases: the unit, parameters that are gone,
// and perhaps those that are not. One of the former may be about to go: what ends the Pager may be
// the end of a parameter, which has its storage until then.
std::vector<std::size_t> Engine::owners_of(const UnitState& unit, bool counts_living) const {
  std::vector<std::size_t> owners(unit.storages.size(), 1);
  for (const AttachedParameter& parameter : parameters_[unit.index]) {
    if (!counts_living && !parameter.tensor.expired()) continue;
    // The weak pointer keeps the object itself.
    const c10::Storage& rest = parameter.tensor._unsafe_get_target()->unsafe_storage();
    const c10::Storage& storage = unit.storages[parameter.part];
    if (rest.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) ++owners[parameter.part];
  }
  return owners;
}

// The parameters are gone, and all aliases of them.
bool Engine::is_unused(const UnitState& unit) const {
  const std::vector<std::size_t> owners = owners_of(unit, /*counts_living=*/false);
  for (std::size_t i = 0; i < owners.size(); ++i) {
    if (static_cast<std::size_t>(unit.storages[i].use_count()) > owners[i]) return false;
  }
  return true;
}

// Values and gradients are copied before anything changes, so that a failure leaves the unit as it
// was.
void Engine::detach(UnitState& unit, std::optional<c10::Device> device, Lock& lock) {
  std::vector<AttachedParameter>& parameters = parameters_[unit.index];
  if (is_unused(unit)) return release(unit, lock);
  const std::vector<std::size_t> owners = owners_of(unit, /*counts_living=*/true);
  std::vector<c10::Device> targets(unit.storages.size(), device.value_or(options_.device));
  for (const AttachedParameter& parameter : parameters) {
    if (device) break;
    targets[parameter.part] = parameter.origin.type() == c10::kMeta ? c10::kCPU : parameter.origin;
  }
  const auto has_aliases = [&](std::size_t part) {
    return static_cast<std::size_t>(unit.storages[part].use_count()) > owners[part];
  };
  bool is_for_host = unit.where == UnitState::Where::absent;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    is_for_host = is_for_host && targets[i].is_cpu() && !has_aliases(i);
  }
  // Not as an operator would: that notes a use, and what is fetched ahead comes too late. What goes
  // to the host does not pass the device, which may be full.
  if (unit.where == UnitState::Where::absent && !is_for_host) bring_in(unit, lock);
  std::vector<at::Tensor> values(unit.storages.size());
  std::vector<at::Tensor> for_aliases(unit.storages.size());
  std::vector<at::Tensor> gradients(parameters.size());
  ++unit.pins;
  try {
    if (side_.exists() && !is_for_host) wait_on_stream(unit, {}, lock);
    const Unlocked unlocked(lock);
    const OrdinaryMode ordinary;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor tensor = parameters[i].lock();
      const c10::Device target = targets[parameters[i].part];
      if (!tensor.defined() || tensor.device() == target) continue;
      const at::Tensor& gradient = tensor.mutable_grad();
      if (gradient.defined() && !gradient.is_meta()) gradients[i] = gradient.to(target);
    }
    const auto as_bytes = at::TensorOptions().dtype(at::kByte);
    at::Tensor block = unit.block;
    // A file is read: its mapping ends the process if it was truncated.
    if (is_for_host || (unit.lent && !unit.lent->is_writable)) {
      side_.synchronize();  // changes may still be on their way to the source
      block = at::empty({static_cast<int64_t>(unit.layout.bytes)}, as_bytes);
      unit.source->fetch(unit.layout, block);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const UnitPart& part = unit.layout.parts[i];
      const auto bytes = static_cast<int64_t>(part.bytes);
      const at::Tensor present = block.defined()
                                     ? block.narrow(0, static_cast<int64_t>(part.offset), bytes)
                                     : at::from_blob(unit.lent->parts[i], {bytes}, as_bytes);
      values[i] = at::empty({bytes}, as_bytes.device(targets[i])).copy_(present);
      if (targets[i] == options_.device || !has_aliases(i)) continue;
      try {
        for_aliases[i] = at::empty({bytes}, as_bytes.device(options_.device)).copy_(present);
      } catch (const c10::OutOfMemoryError&) {  // NOLINT(bugprone-empty-catch)
        // The parameter itself needs no room there. Its aliases say what has become of them.
      }
    }
  } catch (...) {
    --unit.pins;
    throw;
  }
  --unit.pins;
  const std::vector<c10::Storage> storages = unit.storages;
  release(unit, lock);

  const Unlocked unlocked(lock);
  const OrdinaryMode ordinary;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    // Where the parameter stays on the device it keeps its storage, and older aliases with it.
    // Otherwise these stay behind.
    const bool stays = targets[i] == options_.device;
    const at::Tensor& on_device = stays ? values[i] : for_aliases[i];
    if (on_device.defined()) {
      compat::give_memory(*storages[i].unsafeGetStorageImpl(), memory_of(on_device));
    }
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      at::Tensor tensor = parameters[p].part == i ? parameters[p].lock() : at::Tensor();
      if (!tensor.defined() || !has_paging_key(tensor)) continue;
      if (storage_of(tensor) != storages[i].unsafeGetStorageImpl()) continue;
      if (gradients[p].defined()) tensor.mutable_grad() = gradients[p];
      put_on_storage(tensor, stays ? storages[i] : values[i].storage(),
                     /*is_paged=*/false);
    }
    storages[i].unsafeGetStorageImpl()->set_resizable(true);
  }
}

// The unit is the engine's no longer, and its storages have no memory. That much happens even if it
// throws. What holds the unit keeps its block.
void Engine::release(UnitState& unit, Lock& lock) {
  Registry& registry = Registry::instance();
  for (const c10::Storage& storage : unit.storages) {
    registry.units.erase(storage.unsafeGetStorageImpl());
  }
  if (unit.where == UnitState::Where::resident) ++absent_;
  unit.where = UnitState::Where::absent;
  unit.engine = nullptr;
  if (unit.block.defined()) {
    statistics_.resident_bytes -= unit.layout.bytes;
  } else if (unit.lent) {
    statistics_.lent_bytes -= unit.layout.bytes;
  }
  const bool is_orphan = unit.pins > 0;
  if (is_orphan) registry.orphans.push_back(units_[unit.index]);
  for (std::size_t i = 0; i < unit.texts.size(); ++i) {
    unit.texts[i] = end_text(unit.layout.parts[i].names.front(), options_.device);
  }
  take_away(unit);
  if (unit.block.defined()) {
    // What is captured cannot be waited for: the allocator keeps the block until it can be.
    const bool can_be_ordered = can_be_ordered_behind_users(unit);
    if (is_orphan || !can_be_ordered) {
      for (const c10::Stream& stream : unit.users) unit.block.record_stream(stream);
      if (!is_orphan) unit.block.reset();
    } else {
      order_behind_users(unit);
      give_back(std::exchange(unit.block, at::Tensor()));
    }
  }

  // The parameters have memory of their own by now, or soon: not twice for more than a unit.
  const Unlocked unlocked(lock);
  if (!is_orphan) {
    unit.lent.reset();
    unit.retired.clear();
    unit.source.reset();
  }
  pool_.trim();
}

void Engine::abandon() noexcept {
  const auto report = [](const std::exception& error) { log(LogLevel::error, error.what()); };
  try {
    thread_.reset();
  } catch (const std::exception& error) {
    report(error);
  }
  Lock lock(Registry::instance().mutex);
  for (const auto& unit : units_) {
    if (unit->engine == nullptr) continue;
    try {
      wait_while_moving(*unit, lock);
      release(*unit, lock);
    } catch (const std::exception& error) {
      report(error);
    }
  }
}

Engine::~Engine() {
  try {
    detach(std::nullopt);
  } catch (const std::exception& error) {
    log(LogLevel::error,
        c10::str("Parameters of a Pager that ended have no memory any more: ", error.what()));
    abandon();
  }
}

}  // namespace accelerant::paging
