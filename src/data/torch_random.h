#pragma once

#include <cstdint>

namespace accelerant::data {

// The seed that torch's CPU generator was given, by torch::manual_seed or by chance.
uint64_t torch_seed();

}  // namespace accelerant::data
