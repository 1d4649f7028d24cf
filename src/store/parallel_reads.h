// Reads many parts of files by several threads. Without torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "store/weight_file.h"

namespace accelerant::checkpoint {

// Bytes of a tensor, and where they go.
struct TensorRead {
  const WeightFile* file = nullptr;
  const WeightTensor* tensor = nullptr;
  std::uint64_t offset = 0;  // in the tensor
  std::span<std::byte> target = {};
};

// Does all of them, by at most so many threads, the caller's included. Where targets overlap, the
// last one counts. After an Error, which is thrown once all threads have ended, any part of the
// targets may be filled.
void read_all(const std::vector<TensorRead>& reads, int threads);

}  // namespace accelerant::checkpoint
