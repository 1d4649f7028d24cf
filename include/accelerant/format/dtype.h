// The element types of safetensors files.
//
//   dtype_name(DType::bf16);       // "BF16", as in the header of a file
//   dtype_bits(DType::f6_e2m3);    // 6: some types are smaller than a byte
//   byte_size(DType::f4, shape);   // empty if the shape does not fill whole bytes, or is too large
//
// No torch is needed: a program can inspect and copy tensors of types that its libtorch does not
// know.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace accelerant::format {

// In the order of the reference implementation, which is the order of alignment: a writer puts the
// last ones first.
enum class DType : std::uint8_t {
  boolean,      // BOOL, one byte
  f4,           // F4 (E2M1), two in a byte
  f6_e2m3,      // F6_E2M3, four in three bytes
  f6_e3m2,      // F6_E3M2, four in three bytes
  u8,           // U8
  i8,           // I8
  f8_e5m2,      // F8_E5M2
  f8_e4m3,      // F8_E4M3, torch's float8_e4m3fn
  f8_e8m0,      // F8_E8M0, a scale: exponent only
  f8_e4m3fnuz,  // F8_E4M3FNUZ
  f8_e5m2fnuz,  // F8_E5M2FNUZ
  i16,          // I16
  u16,          // U16
  f16,          // F16
  bf16,         // BF16
  i32,          // I32
  u32,          // U32
  f32,          // F32
  c64,          // C64, two F32
  f64,          // F64
  i64,          // I64
  u64,          // U64
};

inline constexpr std::size_t dtype_count = 22;

// Every type, in the order above.
std::array<DType, dtype_count> all_dtypes();

// The name in files, for example "F32".
std::string_view dtype_name(DType dtype);

// The type of that name; empty if there is none. Case matters.
std::optional<DType> dtype_from_name(std::string_view name);

// The size of one element, in bits.
unsigned dtype_bits(DType dtype);

// Why a shape has no size in bytes.
enum class SizeProblem {
  negative,   // a dimension below zero
  overflow,   // too many elements to count, also where another dimension is zero
  misaligned  // the elements do not fill whole bytes
};

// The bytes of a tensor; `problem`, where given, says why there is no such number.
std::optional<std::uint64_t> byte_size(DType dtype, std::span<const std::int64_t> shape,
                                       SizeProblem* problem = nullptr);

}  // namespace accelerant::format
