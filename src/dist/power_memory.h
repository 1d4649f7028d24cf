// What PowerSGD keeps from step to step, which its next steps depend on, and how it is saved.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>

#include "accelerant/tensor/named_state.h"
#include "dist/orthogonal.h"

namespace accelerant::dist {

// Of one bucket.
struct BucketMemory {
  at::Tensor error = {};     // what the last approximation of this process left out
  at::Tensor p = {};         // all factors P of the bucket in one piece, to be sent at once
  at::Tensor q = {};         // all factors Q
  at::Tensor q_random = {};  // what q began with
};

struct PowerSgdMemory {
  explicit PowerSgdMemory(int64_t random_seed) : seeds(random_seed) {}

  int64_t iteration = 0;  // steps that have been made
  SeedSequence seeds;
  std::map<size_t, BucketMemory> buckets = {};  // by the index of the bucket
};

// P is not part of it: every step makes it anew.
//
//   values   {"iteration": 7, "random_seed": 0, "random_draws": 3, "buckets": [0, 1, 2]}
//   tensors  "0.error", "0.q", "0.q_random", ...
NamedState state_of(const PowerSgdMemory& memory);

// With copies of the tensors. Throws Error if the values cannot be. Tensors are not compared with
// the buckets, which are not known here: those of another size are left out when the bucket comes.
PowerSgdMemory memory_of(const NamedState& state);

}  // namespace accelerant::dist
