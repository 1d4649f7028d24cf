// What PowerSGD keeps from step to step and its next steps depend on, and how it is saved.
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
  at::Tensor p = {};         // all factors P of the bucket in one piece, sent at once
  at::Tensor q = {};         // all factors Q
  at::Tensor q_random = {};  // the initial q
};

struct PowerSgdMemory {
  explicit PowerSgdMemory(int64_t random_seed) : seeds(random_seed) {}

  int64_t iteration = 0;  // steps so far
  SeedSequence seeds;
  std::map<size_t, BucketMemory> buckets = {};  // by the index of the bucket
};

// P is not included: every step computes it afresh.
//
//   values   {"iteration": 7, "random_seed": 0, "random_draws": 3, "buckets": [0, 1, 2]}
//   tensors  "0.error", "0.q", "0.q_random", ...
NamedState state_of(const PowerSgdMemory& memory);

// With copies of the tensors. Throws Error if the values are invalid. Tensors are not compared with
// the buckets, which are not known here: those of the wrong size are ignored when their bucket
// comes.
PowerSgdMemory memory_of(const NamedState& state);

}  // namespace accelerant::dist
