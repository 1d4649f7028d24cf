#include "paging/attachment.h"

#include <ATen/ops/empty.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/StringUtil.h>

#include <map>
#include <set>
#include <utility>

#include "accelerant/core/error.h"
#include "compat/storage_memory.h"
#include "paging/interception.h"
#include "paging/key_alias.h"

namespace accelerant::paging {
namespace {

[[noreturn]] void refuse_parameter(const std::string& name, const std::string& expected,
                                   const std::string& got, const std::string& hint) {
  throw Error(ErrorDetails{.problem = c10::str("The parameter \"", name, "\" cannot be paged"),
                           .expected = expected,
                           .got = got,
                           .hint = hint});
}

void check_parameter(const NamedParameter& named, bool has_source) {
  const at::Tensor& parameter = named.parameter;
  if (!parameter.defined() || parameter.layout() != at::kStrided || parameter.is_inference()) {
    refuse_parameter(named.name, "a dense tensor that was made outside of inference mode",
                     !parameter.defined()                 ? "an undefined tensor"
                     : parameter.layout() != at::kStrided ? c10::str(parameter.layout(), " layout")
                                                          : "an inference tensor",
                     "leave it out");
  }
  if (has_paging_key(parameter)) {
    refuse_parameter(named.name, "an ordinary tensor", "a parameter that is paged already",
                     "call undo_offload() first");
  }
  if (parameter.is_meta() && !has_source) {
    refuse_parameter(named.name, "values, or a source that has them", "a tensor on the meta device",
                     "materialize() the model and load its values first");
  }
}

// Everything that holds the storage must be known: another tensor would find no memory.
void check_owners(const PlannedUnit& unit) {
  std::vector<std::size_t> parameters(unit.layout.parts.size(), 0);
  for (const AttachedParameter& parameter : unit.parameters) ++parameters[parameter.part];
  for (std::size_t part = 0; part < parameters.size(); ++part) {
    // One more is in `unit.storages`.
    const auto owners = static_cast<std::size_t>(unit.storages[part].use_count()) - 1;
    if (owners <= parameters[part]) continue;
    refuse_parameter(
        unit.layout.parts[part].names.front(), "memory that only parameters of the unit use",
        c10::str(owners - parameters[part], " other tensors with the same memory"),
        "they are views of it, results of detach() or data(), buffers, saved for a backward that "
        "has not run, or held by an optimizer that has stepped: drop them first, and attach before "
        "anything else takes hold of it");
  }
}

c10::DispatchKeySet keys_of_device(const at::Tensor& parameter, c10::Device device) {
  if (parameter.device() == device) return parameter.key_set().remove(paging_key);
  return at::empty({0}, parameter.options().device(device).pinned_memory(false)).key_set();
}

}  // namespace

std::vector<PlannedUnit> lay_out(const std::vector<UnitPlan>& plans) {
  std::vector<PlannedUnit> units;
  struct Place {
    std::size_t unit;
    std::size_t part;
  };
  std::map<const c10::StorageImpl*, Place> places;
  std::map<const c10::TensorImpl*, std::size_t> known;  // index in the unit's parameters
  std::set<std::string> unit_names;
  for (const UnitPlan& plan : plans) {
    if (!unit_names.insert(plan.name).second) {
      throw Error(ErrorDetails{.problem = "Units of a Pager cannot be told apart",
                               .expected = "a name of its own for each",
                               .got = c10::str("two that are named \"", plan.name, "\""),
                               .hint = "set UnitPlan::name"});
    }
    const std::size_t index = units.size();
    PlannedUnit unit{.layout = {.name = plan.name}, .source = plan.source};
    for (const NamedParameter& named : plan.parameters) {
      check_parameter(named, plan.source != nullptr);
      const at::Tensor& parameter = named.parameter;
      const c10::Storage& storage = parameter.unsafeGetTensorImpl()->unsafe_storage();
      const auto [place, is_new] = places.try_emplace(storage.unsafeGetStorageImpl(),
                                                      Place{index, unit.layout.parts.size()});
      PlannedUnit& owner = place->second.unit == index ? unit : units[place->second.unit];
      if (is_new) {
        const std::size_t bytes = storage.nbytes();
        unit.layout.parts.push_back(
            {.names = {},
             .dtype = parameter.scalar_type(),
             .sizes = parameter.sizes().vec(),
             .is_whole = parameter.is_contiguous() && parameter.nbytes() == bytes,
             .offset = unit.layout.bytes,
             .bytes = bytes});
        unit.layout.bytes += aligned_for_block(bytes);
        unit.storages.push_back(storage);
      }
      owner.layout.parts[place->second.part].names.push_back(named.name);
      if (known.try_emplace(parameter.unsafeGetTensorImpl(), index).second) {
        owner.parameters.push_back({.name = named.name,
                                    .tensor = WeakTensor(parameter.getIntrusivePtr()),
                                    .part = place->second.part,
                                    .origin = parameter.device()});
      }
    }
    if (!unit.layout.parts.empty()) units.push_back(std::move(unit));
  }
  for (const PlannedUnit& unit : units) {
    check_owners(unit);
    if (unit.source) unit.source->check(unit.layout);
  }
  return units;
}

void put_on_storage(at::Tensor& parameter, c10::Storage storage, bool is_paged) {
  const c10::Device device = storage.device();
  c10::DispatchKeySet keys = keys_of_device(parameter, device);
  if (is_paged) keys = keys.add(paging_key);
  const at::Tensor alias = alias_of_storage(std::move(storage), parameter, keys);
  const bool moves = parameter.device() != device;
  if (parameter.is_meta() && moves) {
    // set_data() alone refuses. Of a meta tensor nothing but the node that accumulates gradients
    // depends on the device, which set_data() resets.
    parameter.unsafeGetTensorImpl()->shallow_copy_from(alias.getIntrusivePtr());
  }
  parameter.set_data(alias);
  if (!moves) return;
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  gradient = gradient.is_meta() ? at::Tensor() : gradient.to(device);  // it had no values
}

bool is_attached(const AttachedParameter& parameter, const UnitState& unit) {
  const c10::StorageImpl* const storage = unit.storages[parameter.part].unsafeGetStorageImpl();
  const at::Tensor tensor = parameter.lock();
  return !tensor.defined() || (has_paging_key(tensor) && storage_of(tensor) == storage);
}

at::Tensor bytes_of(const c10::Storage& storage) {
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()))
      .set_(storage, 0, {bytes}, {1});
}

c10::Storage empty_storage(std::size_t bytes, c10::Device device) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(bytes)),
      c10::DataPtr(nullptr, device), c10::GetAllocator(device.type()), /*resizable=*/false));
}

}  // namespace accelerant::paging
