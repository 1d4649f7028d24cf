// The body of fused_loops_default.cpp, fused_loops_avx2.cpp and fused_loops_avx512.cpp. Each
// defines ACCELERANT_FUSED_LOOPS, the name of its table, and is compiled for its instruction set.
// Everything here is local to them.
#include <array>
#include <cstring>
#include <utility>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "kernels/cpu/fused_loops.h"

namespace accelerant::kernels::cpu {
namespace {

template <Rule rule, class T>
void update(const Scalars<T>& given, const T* __restrict gradient, T* __restrict parameter,
            T* __restrict first, T* __restrict second, T* __restrict third, std::int64_t size) {
  const Scalars<T> scalars = given;
  for (std::int64_t i = 0; i < size; ++i) {
    T p = parameter[i];
    T a{};
    T b{};
    T c{};
    if constexpr (states_of(rule) > 0) a = first[i];
    if constexpr (states_of(rule) > 1) b = second[i];
    if constexpr (states_of(rule) > 2) c = third[i];
    update_element<rule>(scalars, gradient[i], p, a, b, c);
    parameter[i] = p;
    if constexpr (states_of(rule) > 0) first[i] = a;
    if constexpr (states_of(rule) > 1) second[i] = b;
    if constexpr (states_of(rule) > 2) third[i] = c;
  }
}

// Vectors of 64 bytes; with smaller registers, the compiler uses several.
template <class T, class Bits>
struct Lanes {
  static constexpr std::int64_t width = 64 / sizeof(T);
  typedef T Values __attribute__((vector_size(64)));
  typedef Bits Integers __attribute__((vector_size(64)));
};

// Sums in lanes, which are added to a double now and then. The vectors compare magnitudes as bits:
// inf and nan are the largest.
template <class T, class Bits>
SquareSum squares(const T* values, std::int64_t size, T factor, Bits magnitude, Bits infinite) {
  using V = typename Lanes<T, Bits>::Values;
  using I = typename Lanes<T, Bits>::Integers;
  constexpr std::int64_t width = Lanes<T, Bits>::width;
  constexpr std::int64_t run = 128 * width;  // elements between two transfers to double
  I largest = {};
  double total = 0.0;
  for (std::int64_t begin = 0; begin < size; begin += run) {
    const std::int64_t end = begin + run < size ? begin + run : size;
    V sums[2] = {};
    const auto take = [&](const T* from, V& sum) __attribute__((always_inline)) {
      V value;
      std::memcpy(&value, from, sizeof(value));
      value = value * factor;
      I bits;
      std::memcpy(&bits, &value, sizeof(bits));
      bits &= magnitude;
      largest = bits > largest ? bits : largest;
      sum += value * value;
    };
    std::int64_t i = begin;
    for (; i + 2 * width <= end; i += 2 * width) {
      take(values + i, sums[0]);
      take(values + i + width, sums[1]);
    }
    for (; i < end; i += width) {
      T rest[width] = {};
      std::memcpy(rest, values + i,
                  static_cast<std::size_t>(end - i < width ? end - i : width) * sizeof(T));
      take(rest, sums[0]);
    }
    for (std::int64_t lane = 0; lane < width; ++lane) {
      total += static_cast<double>(sums[0][lane]) + static_cast<double>(sums[1][lane]);
    }
  }
  bool finite = true;
  for (std::int64_t lane = 0; lane < width; ++lane) finite &= largest[lane] < infinite;
  return {total, finite};
}

SquareSum squares32(const float* values, std::int64_t size, float factor) {
  SquareSum result =
      squares<float, std::int32_t>(values, size, factor, 0x7fffffff, std::int32_t{0x7f800000});
  // Squares of finite numbers may overflow float.
  if (result.finite && !(result.sum < 1e300)) {
    result.sum = 0.0;
    for (std::int64_t i = 0; i < size; ++i) {
      const double value = static_cast<double>(values[i] * factor);
      result.sum += value * value;
    }
  }
  return result;
}

SquareSum squares64(const double* values, std::int64_t size, double factor) {
  return squares<double, std::int64_t>(values, size, factor, 0x7fffffffffffffff,
                                       std::int64_t{0x7ff0000000000000});
}

template <class To, class From>
inline __attribute__((always_inline)) To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

void from_bfloat16(const std::uint16_t* __restrict values, float* __restrict result,
                   std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    result[i] = bits_as<float>(static_cast<std::uint32_t>(values[i]) << 16);
  }
}

void to_bfloat16(const float* __restrict values, std::uint16_t* __restrict result,
                 std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    const auto bits = bits_as<std::uint32_t>(values[i]);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
    result[i] = static_cast<std::uint16_t>(is_nan ? 0x7fc0U : rounded);
  }
}

// Without branches: a multiplication shifts the exponent, which also handles denormal numbers.
inline __attribute__((always_inline)) float widen_float16(std::uint16_t value) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value & 0x7fffU) << 13;
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000U) << 16;
  const auto moved = bits_as<std::uint32_t>(bits_as<float>(magnitude) * 0x1p112F);
  const std::uint32_t special = magnitude >= 0x0f800000U ? 0x7f800000U : 0U;  // inf and nan
  return bits_as<float>(moved | special | sign);
}

inline __attribute__((always_inline)) std::uint16_t narrow_float16(float value) {
  const auto bits = bits_as<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // Normal: rounds to nearest, ties to even; too large numbers become inf.
  const std::uint32_t normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  // Denormal: adding one half leaves the rounded number in the last bits.
  const auto denormal =
      bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0.5F) - bits_as<std::uint32_t>(0.5F);
  std::uint32_t result = magnitude < 0x38800000U ? denormal : normal;
  result = magnitude >= 0x47800000U ? 0x7c00U : result;
  result = magnitude > 0x7f800000U ? 0x7e00U : result;
  return static_cast<std::uint16_t>(result | sign);
}

void from_float16(const std::uint16_t* __restrict values, float* __restrict result,
                  std::int64_t size) {
  std::int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= size; i += 8) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + i));
    _mm256_storeu_ps(result + i, _mm256_cvtph_ps(packed));
  }
#endif
  for (; i < size; ++i) result[i] = widen_float16(values[i]);
}

void to_float16(const float* __restrict values, std::uint16_t* __restrict result,
                std::int64_t size) {
  std::int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= size; i += 8) {
    const __m128i packed = _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(result + i), packed);
  }
#endif
  for (; i < size; ++i) result[i] = narrow_float16(values[i]);
}

template <int... rules>
constexpr FusedLoops make_loops(std::integer_sequence<int, rules...>) {
  return {.update32 = {update<static_cast<Rule>(rules), float>...},
          .update64 = {update<static_cast<Rule>(rules), double>...},
          .squares32 = squares32,
          .squares64 = squares64,
          .from_float16 = from_float16,
          .to_float16 = to_float16,
          .from_bfloat16 = from_bfloat16,
          .to_bfloat16 = to_bfloat16};
}

}  // namespace

extern const FusedLoops ACCELERANT_FUSED_LOOPS;
constexpr FusedLoops ACCELERANT_FUSED_LOOPS = make_loops(std::make_integer_sequence<int, kRules>());

}  // namespace accelerant::kernels::cpu
