// How operators reach the pager: a dispatch key on the parameters, and one function for all
// operators with such an argument.
//
// The key is one that libtorch reserves for programs outside of it and does not use. Aliases of a
// parameter (views, detach(), what autograd saves for backward) carry it, results of computations
// do not. The function finds out which units an operator needs, keeps them in memory, and passes
// the call on to the kernels that would have run without it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

namespace accelerant::paging {

// If a libtorch uses this key itself, start_interception() says so.
inline constexpr c10::DispatchKey paging_key = c10::DispatchKey::DeferredInit;

struct UnitState;

// Units that stay in memory as long as this object.
class Pins {
 public:
  Pins() = default;
  Pins(Pins&& other) noexcept : units_(std::move(other.units_)) { other.units_.clear(); }
  Pins& operator=(Pins&&) = delete;
  ~Pins() { release(); }

  void release() noexcept;

  // Makes the memory of a tensor present, if it is paged. `writes`: the caller will change it.
  // `is_guard`: for longer than one operator, so that a CUDA graph may capture its address.
  void add(const at::Tensor& tensor, bool writes, bool is_guard);

 private:
  struct Pin {
    UnitState* unit;
    bool is_guard;
  };
  c10::SmallVector<Pin, 4> units_;
};

// Makes operators with the key pass through the pager, once per process, and checks that they do.
// Throws Error, which names the version of libtorch, if that is impossible.
void start_interception();

}  // namespace accelerant::paging
