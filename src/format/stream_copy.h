// Copies memory past the caches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace accelerant::format {

// As memcpy, for much that is not used at once. A plain copy first fetches what it is about to overwrite, which
// is a third of all that goes over the bus; memcpy itself avoids that only for tens of MiB at a time.
inline void stream_copy(std::byte* target, const std::byte* source, std::size_t size) {
#ifdef __SSE2__
  constexpr std::size_t kLine = 64;
  const auto address = reinterpret_cast<std::uintptr_t>(target);
  const std::size_t head = std::min(size, (kLine - address % kLine) % kLine);
  std::memcpy(target, source, head);
  std::size_t done = head;
  for (; done + kLine <= size; done += kLine) {
    const auto* const from = reinterpret_cast<const __m128i*>(source + done);
    auto* const to = reinterpret_cast<__m128i*>(target + done);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  _mm_sfence();  // what was written counts for other threads too
  std::memcpy(target + done, source + done, size - done);
#else
  std::memcpy(target, source, size);
#endif
}

}  // namespace accelerant::format
