// Learns when backward is done with a unit: when all gradients of its parameters are accumulated.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "paging/unit_state.h"

namespace accelerant::paging {

// Counts the parameter's gradients among those its unit awaits, as long as the result lives.
// Parameters without gradients are ignored: the result is null.
std::shared_ptr<void> watch_gradient(const at::Tensor& parameter,
                                     const std::shared_ptr<UnitState>& unit);

}  // namespace accelerant::paging
