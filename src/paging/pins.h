// Units that an operator, or a Residency, is using.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <utility>

#include "accelerant/core/detail/own_process.h"

namespace accelerant::paging {

struct UnitState;

struct Use {
  bool writes = false;         // the memory will be changed
  bool is_guard = false;       // for longer than one operator: CUDA graphs may capture the address
  bool outlives_call = false;  // the operator goes on using the memory after it returns
};

// Keeps units in memory as long as it lives.
class Pins {
 public:
  Pins() = default;
  Pins(Pins&& other) noexcept : process_(other.process_), pins_(std::move(other.pins_)) {
    other.pins_.clear();
  }
  Pins& operator=(Pins&&) = delete;
  ~Pins() { release(); }

  // Brings in the memory of a tensor, if it is paged. May take as long as a transfer; throws what
  // the source throws, and then pins nothing.
  void add(const at::Tensor& tensor, Use use);

  void release() noexcept;

 private:
  struct Pin {
    UnitState* unit;
    Use use;
  };

  accelerant::detail::OwnProcess process_;
  // Operators seldom use more parameters than a weight and its bias.
  c10::SmallVector<Pin, 4> pins_;
};

}  // namespace accelerant::paging
