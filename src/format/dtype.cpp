#include "accelerant/format/safetensors.h"

#include <algorithm>

namespace accelerant::format {
namespace {

struct DTypeFacts {
  std::string_view name;
  unsigned bits;
};

// In the order of DType.
constexpr std::array<DTypeFacts, dtype_count> dtype_facts = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};
static_assert(static_cast<std::size_t>(DType::u64) + 1 == dtype_count);

const DTypeFacts& facts_of(DType dtype) { return dtype_facts[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::array<DType, dtype_count> all_dtypes() {
  std::array<DType, dtype_count> all{};
  for (std::size_t i = 0; i < dtype_count; ++i) all[i] = static_cast<DType>(i);
  return all;
}

std::string_view dtype_name(DType dtype) { return facts_of(dtype).name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  const auto found = std::find_if(dtype_facts.begin(), dtype_facts.end(),
                                  [&](const DTypeFacts& facts) { return facts.name == name; });
  if (found == dtype_facts.end()) return {};
  return static_cast<DType>(found - dtype_facts.begin());
}

unsigned dtype_bits(DType dtype) { return facts_of(dtype).bits; }

std::optional<std::uint64_t> byte_size(DType dtype, std::span<const std::int64_t> shape,
                                       SizeProblem* problem) {
  const auto refuse = [&](SizeProblem reason) -> std::optional<std::uint64_t> {
    if (problem != nullptr) *problem = reason;
    return {};
  };
  // Overflow counts even beside a zero: strides are products of the other dimensions.
  std::uint64_t bits = dtype_bits(dtype);
  bool is_empty = false;
  for (const std::int64_t size : shape) {
    if (size < 0) return refuse(SizeProblem::negative);
    if (size == 0) {
      is_empty = true;
    } else if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(size), &bits)) {
      return refuse(SizeProblem::overflow);
    }
  }
  if (is_empty) return 0;
  if (bits % 8 != 0) return refuse(SizeProblem::misaligned);
  return bits / 8;
}

}  // namespace accelerant::format
