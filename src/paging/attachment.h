// Parameters of a Pager: how they lie in units, and how they get the key and lose it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "paging/unit.h"
#include "paging/unit_state.h"

namespace accelerant::paging {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// A parameter, once, however many names it has. Borrowed: what owns a Pager may itself be owned by
// the parameters.
struct AttachedParameter {
  std::string name = {};           // the first one
  WeakTensor tensor;               // the program's, which may drop it
  std::size_t part = 0;            // of its unit: its storage
  c10::Device origin = c10::kCPU;  // where it was before
  std::shared_ptr<void> gradient_hook = {};

  // The parameter; undefined if it is gone.
  at::Tensor lock() const {
    auto held = tensor.lock();
    return held ? at::Tensor(std::move(held)) : at::Tensor();
  }
};

struct PlannedUnit {
  UnitLayout layout = {};
  std::vector<AttachedParameter> parameters = {};
  std::vector<c10::Storage> storages = {};  // as they are now, one per part
  std::shared_ptr<Source> source = {};
};

// Assigns every storage to the first unit that names it, and drops units without parameters. Throws
// Error if a parameter cannot be paged, or a source does not have it.
std::vector<PlannedUnit> lay_out(const std::vector<UnitPlan>& plans);

// Replaces storage, device and keys of a parameter. Sizes, strides, type, autograd state and
// version stay; a gradient moves along, unless it has no values.
void put_on_storage(at::Tensor& parameter, c10::Storage storage, bool is_paged);

// Whether the parameter still uses the storage it was given, through the pager, if it still exists.
bool is_attached(const AttachedParameter& parameter, const UnitState& unit);

// The bytes of a storage, as a tensor. The storage must have memory.
at::Tensor bytes_of(const c10::Storage& storage);

// A storage without memory.
c10::Storage empty_storage(std::size_t bytes, c10::Device device);

}  // namespace accelerant::paging
