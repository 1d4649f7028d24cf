// Collectives whose names changed between libtorch versions.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "compat/torch_version.h"

namespace accelerant::compat {

inline c10::intrusive_ptr<c10d::Work> all_gather_single(c10d::ProcessGroup& group,
                                                        at::Tensor& output, at::Tensor& input) {
#if ACCELERANT_TORCH_AT_LEAST(2, 13)
  return group.all_gather_single(output, input);
#else
  return group._allgather_base(output, input);
#endif
}

}  // namespace accelerant::compat
