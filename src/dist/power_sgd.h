// PowerSGD (Vogels, Karimireddy, Jaggi 2019): a gradient M is sent as P and Q, M ≈ P Qᵀ, one step
// of power iteration from the Q of the previous step. Computes the same numbers as torch's
// powerSGD_hook, including random ones.
#pragma once

#include "accelerant/dist/data_parallel_options.h"
#include "dist/compressor.h"

namespace accelerant::dist {

// Matrix by matrix.
std::unique_ptr<Compressor> make_power_sgd(const PowerSgdOptions& options, const GroupPtr& group);

// Each bucket as one square matrix.
std::unique_ptr<Compressor> make_batched_power_sgd(const PowerSgdOptions& options,
                                                   const GroupPtr& group);

}  // namespace accelerant::dist
