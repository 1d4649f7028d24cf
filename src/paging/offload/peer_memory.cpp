#include "paging/offload/peer_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <utility>
#include <vector>

#include "accelerant/core/error.h"
#include "paging/attachment.h"

namespace accelerant::paging {

std::shared_ptr<Source> PeerMemory::holding(const UnitPlan& unit, c10::Device device) {
  const at::NoGradGuard no_grad;
  const std::vector<PlannedUnit> planned = lay_out({unit});
  TORCH_INTERNAL_ASSERT(planned.size() == 1);
  const UnitLayout& layout = planned.front().layout;
  at::Tensor block = at::empty({static_cast<int64_t>(layout.bytes)},
                               at::TensorOptions().dtype(at::kByte).device(device));
  for (std::size_t i = 0; i < layout.parts.size(); ++i) {
    const UnitPart& part = layout.parts[i];
    block.narrow(0, static_cast<int64_t>(part.offset), static_cast<int64_t>(part.bytes))
        .copy_(bytes_of(planned.front().storages[i]));
  }
  return std::make_shared<PeerMemory>(std::move(block));
}

void PeerMemory::check(const UnitLayout& layout) const {
  if (block_.nbytes() == layout.bytes) return;
  throw Error(ErrorDetails{.problem = c10::str("The memory of \"", layout.name, "\" on ",
                                               block_.device(), " does not fit"),
                           .expected = c10::str(layout.bytes, " bytes"),
                           .got = c10::str(block_.nbytes())});
}

// Between two GPUs a copy waits for the current streams of both, and both wait for it. What goes to
// the host is read there at once.
void PeerMemory::fetch(const UnitLayout&, const at::Tensor& block) {
  block.copy_(block_, /*non_blocking=*/!block.is_cpu());
}

void PeerMemory::store(const UnitLayout&, const at::Tensor& block) {
  block_.copy_(block, /*non_blocking=*/true);
}

}  // namespace accelerant::paging
