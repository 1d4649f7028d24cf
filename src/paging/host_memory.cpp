#include "paging/host_memory.h"

#include <c10/util/StringUtil.h>

#include <cstddef>
#include <utility>

#include "accelerant/core/error.h"
#include "compat/pinned_memory.h"

namespace accelerant::paging {

HostMemory::HostMemory(at::Tensor block) : block_(std::move(block)) {}

at::Tensor HostMemory::allocate(const UnitLayout& layout, c10::Device device) {
  return compat::empty_on_host_for(device, {static_cast<int64_t>(layout.bytes)}, {1}, at::kByte);
}

void HostMemory::check(const UnitLayout& layout) const {
  if (block_.defined() && block_.is_cpu() && block_.is_contiguous() &&
      block_.scalar_type() == at::kByte && block_.nbytes() == layout.bytes) {
    return;
  }
  throw Error(ErrorDetails{
      .problem = c10::str("The host memory of \"", layout.name, "\" does not fit"),
      .expected = c10::str(layout.bytes, " bytes on the CPU"),
      .got = block_.defined()
                 ? c10::str(block_.sizes(), " of ", block_.scalar_type(), " on ", block_.device())
                 : std::string("no tensor")});
}

std::optional<LentMemory> HostMemory::lend(const UnitLayout& layout) {
  LentMemory lent{.is_writable = true};
  auto* const start = static_cast<std::byte*>(block_.mutable_data_ptr());
  for (const UnitPart& part : layout.parts) lent.parts.push_back(start + part.offset);
  return lent;
}

void HostMemory::fetch(const UnitLayout&, const at::Tensor& block) {
  block.copy_(block_, /*non_blocking=*/true);
}

void HostMemory::store(const UnitLayout&, const at::Tensor& block) {
  block_.copy_(block, /*non_blocking=*/true);
}

}  // namespace accelerant::paging
