#pragma once

#include <cstdint>

namespace accelerant::data {

// The seed of torch's CPU generator, set by torch::manual_seed or random.
uint64_t torch_seed();

}  // namespace accelerant::data
