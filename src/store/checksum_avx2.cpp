// Compiled for AVX2. Includes nothing of the C++ library: its inline functions would be compiled
// for AVX2 too, and the linker might choose them for the whole program.
#include "store/checksum_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace accelerant::checkpoint {

std::uint64_t checksum_with_avx2(const void* bytes, std::size_t size) {
  return XXH3_64bits(bytes, size);
}

}  // namespace accelerant::checkpoint
