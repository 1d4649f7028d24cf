// The same checksum with instructions that not every x86-64 has.
#pragma once

#include <cstddef>
#include <cstdint>

namespace accelerant::checkpoint {

// XXH3. Call it only if the processor has AVX2.
std::uint64_t checksum_with_avx2(const void* bytes, std::size_t size);

}  // namespace accelerant::checkpoint
