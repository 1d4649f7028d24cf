// Converts between floating-point types of 16 bits and more, as torch does on a CPU: round to
// nearest, ties to even; too large values become infinite; NaN stays NaN.
//
//   convert_floats(DType::f32, source, DType::bf16, target);   // target has half the bytes
//
// Like torch, F64 goes to F16 and BF16 by way of F32, which rounds twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "accelerant/format/safetensors.h"

namespace accelerant::format {

// F64, F32, F16 or BF16.
bool is_convertible_float(DType dtype);

// Whether every value of `from` can be represented in `to`.
bool is_lossless(DType from, DType to);

// F16 as bits. A NaN keeps its sign and the upper part of its payload, and becomes quiet.
float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float value);

// BF16 as bits. On the way to BF16 every NaN becomes 0x7FC0, with its sign.
float bfloat16_to_float(std::uint16_t bits);
std::uint16_t float_to_bfloat16(float value);

// Converts all of `source`. The bytes are little-endian and need not be aligned. `target` must hold
// as many elements as `source`, and both types must be convertible; otherwise throws Error. Returns
// how many finite values became infinite.
std::uint64_t convert_floats(DType from, std::span<const std::byte> source, DType to,
                             std::span<std::byte> target);

}  // namespace accelerant::format
