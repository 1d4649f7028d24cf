// Converts between the floating-point types of 16 bits and more, as torch does on a CPU: to the
// nearest value, of two equally near ones to the even one; what is too large becomes infinite; NaN
// stays NaN.
//
//   convert_floats(DType::f32, source, DType::bf16, target);   // target has half the bytes
//
// From F64 torch goes to F16 and BF16 by way of F32, rounding twice, and so does this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "accelerant/format/safetensors_file.h"

namespace accelerant::format {

// F64, F32, F16 or BF16.
bool is_convertible_float(DType dtype);

// Whether every value of `from` is one of `to` too.
bool is_lossless(DType from, DType to);

// F16 by its bits. A NaN keeps its sign and the upper part of its payload, and becomes a quiet one.
float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float value);

// BF16 by its bits. Every NaN becomes 0x7FC0, with its sign, on the way to BF16.
float bfloat16_to_float(std::uint16_t bits);
std::uint16_t float_to_bfloat16(float value);

// Converts all of `source`. The bytes, little-endian, need not be aligned; `target` must hold as
// many elements as `source`, and both types must be convertible: an Error otherwise. Returns how
// many finite values became infinite.
std::uint64_t convert_floats(DType from, std::span<const std::byte> source, DType to,
                             std::span<std::byte> target);

}  // namespace accelerant::format
