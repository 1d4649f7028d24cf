#include "format/float_conversion.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "accelerant/core/error.h"

namespace accelerant::format {
namespace {

constexpr std::uint32_t kSignBit = 0x8000'0000;
constexpr std::uint32_t kFloatInfinity = 0x7f80'0000;

struct F16 {
  using Bits = std::uint16_t;
  static float load(Bits bits) { return half_to_float(bits); }
  template <class T>
  static Bits store(T value) {
    return float_to_half(static_cast<float>(value));
  }
  static bool is_infinite(Bits bits) { return (bits & 0x7fffU) == 0x7c00U; }
};

struct BF16 {
  using Bits = std::uint16_t;
  static float load(Bits bits) { return bfloat16_to_float(bits); }
  template <class T>
  static Bits store(T value) {
    return float_to_bfloat16(static_cast<float>(value));
  }
  static bool is_infinite(Bits bits) { return (bits & 0x7fffU) == 0x7f80U; }
};

template <class Float>
struct Native {
  using Bits = Float;
  static Float load(Bits value) { return value; }
  template <class T>
  static Bits store(T value) {
    return static_cast<Float>(value);
  }
  static bool is_infinite(Bits value) { return std::isinf(value); }
};

template <class From, class To>
std::uint64_t convert_all(std::span<const std::byte> source, std::span<std::byte> target) {
  const std::size_t count = source.size() / sizeof(typename From::Bits);
  std::uint64_t overflows = 0;
  for (std::size_t i = 0; i < count; ++i) {
    typename From::Bits in;
    std::memcpy(&in, source.data() + i * sizeof in, sizeof in);
    const typename To::Bits out = To::store(From::load(in));
    overflows += static_cast<std::uint64_t>(To::is_infinite(out) && !From::is_infinite(in));
    std::memcpy(target.data() + i * sizeof out, &out, sizeof out);
  }
  return overflows;
}

template <class From>
std::uint64_t convert_from(std::span<const std::byte> source, DType to,
                           std::span<std::byte> target) {
  if (to == DType::f64) return convert_all<From, Native<double>>(source, target);
  if (to == DType::f32) return convert_all<From, Native<float>>(source, target);
  if (to == DType::f16) return convert_all<From, F16>(source, target);
  return convert_all<From, BF16>(source, target);
}

}  // namespace

bool is_convertible_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

bool is_lossless(DType from, DType to) {
  if (from == to) return true;
  return is_convertible_float(from) && is_convertible_float(to) &&
         dtype_bits(from) < dtype_bits(to);
}

float half_to_float(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000U) << 16;
  const std::uint32_t magnitude = (half & 0x7fffU) << 13;
  constexpr std::uint32_t rebias = (127 - 15) << 23;
  std::uint32_t bits = magnitude + rebias;
  if (magnitude >= 0x0f80'0000) {
    bits += rebias;                                    // infinite or NaN
    if (magnitude > 0x0f80'0000) bits |= 0x0040'0000;  // quiet
  } else if (magnitude < 0x0080'0000) {
    // Subnormal: add an implicit leading one, which the subtraction removes, normalising the value.
    constexpr std::uint32_t smallest_normal = (127 - 14) << 23;
    const float value =
        std::bit_cast<float>(magnitude + smallest_normal) - std::bit_cast<float>(smallest_normal);
    bits = std::bit_cast<std::uint32_t>(value);
  }
  return std::bit_cast<float>(sign | bits);
}

std::uint16_t float_to_half(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits & kSignBit) >> 16;
  const std::uint32_t magnitude = bits & ~kSignBit;
  constexpr std::uint32_t rounds_to_infinity = 0x477f'f000;  // 65520
  constexpr std::uint32_t smallest_normal = (127 - 14) << 23;
  std::uint32_t half = 0;
  if (magnitude > kFloatInfinity) {
    half = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  } else if (magnitude >= rounds_to_infinity) {
    half = 0x7c00U;
  } else if (magnitude < smallest_normal) {
    // The last bit of floats near 0.5 has the value of the last bit of a subnormal half, so adding
    // 0.5 rounds correctly.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
           std::bit_cast<std::uint32_t>(0.5F);
  } else {
    const std::uint32_t odd = (magnitude >> 13) & 1U;
    half = (magnitude - ((127U - 15U) << 23) + 0xfffU + odd) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

float bfloat16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t float_to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const bool is_nan = (bits & ~kSignBit) > kFloatInfinity;
  const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return static_cast<std::uint16_t>(is_nan ? ((bits & kSignBit) >> 16) | 0x7fc0U : rounded);
}

std::uint64_t convert_floats(DType from, std::span<const std::byte> source, DType to,
                             std::span<std::byte> target) {
  const bool known = is_convertible_float(from) && is_convertible_float(to);
  const std::size_t from_size = dtype_bits(from) / 8;
  const std::size_t to_size = dtype_bits(to) / 8;
  if (!known || source.size() % from_size != 0 ||
      source.size() / from_size * to_size != target.size()) {
    throw Error(ErrorDetails{.problem = "Floating-point numbers cannot be converted",
                             .expected = "F64, F32, F16 or BF16, and a target of matching size",
                             .got = std::to_string(source.size()) + " bytes of " +
                                    std::string(dtype_name(from)) + " and a target of " +
                                    std::to_string(target.size()) + " bytes of " +
                                    std::string(dtype_name(to))});
  }
  if (from == to) {
    std::memcpy(target.data(), source.data(), source.size());
    return 0;
  }
  if (from == DType::f64) return convert_from<Native<double>>(source, to, target);
  if (from == DType::f32) return convert_from<Native<float>>(source, to, target);
  if (from == DType::f16) return convert_from<F16>(source, to, target);
  return convert_from<BF16>(source, to, target);
}

}  // namespace accelerant::format
