#include "tensor/tensor_dtype.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace accelerant {
namespace {

using c10::ScalarType;
using format::DType;

// torch's archives have two types that safetensors lacks.
constexpr const char* kComplexHalf = "C32";
constexpr const char* kComplexDouble = "C128";

constexpr std::pair<ScalarType, DType> kTypes[] = {
    {ScalarType::Bool, DType::boolean},
    {ScalarType::Byte, DType::u8},
    {ScalarType::Char, DType::i8},
    {ScalarType::Float8_e5m2, DType::f8_e5m2},
    {ScalarType::Float8_e4m3fn, DType::f8_e4m3},
    {ScalarType::Float8_e8m0fnu, DType::f8_e8m0},
    {ScalarType::Float8_e4m3fnuz, DType::f8_e4m3fnuz},
    {ScalarType::Float8_e5m2fnuz, DType::f8_e5m2fnuz},
    {ScalarType::Short, DType::i16},
    {ScalarType::UInt16, DType::u16},
    {ScalarType::Half, DType::f16},
    {ScalarType::BFloat16, DType::bf16},
    {ScalarType::Int, DType::i32},
    {ScalarType::UInt32, DType::u32},
    {ScalarType::Float, DType::f32},
    {ScalarType::ComplexFloat, DType::c64},
    {ScalarType::Double, DType::f64},
    {ScalarType::Long, DType::i64},
    {ScalarType::UInt64, DType::u64},
};

}  // namespace

std::optional<DType> format_dtype(ScalarType type) {
  const auto* found =
      std::ranges::find(kTypes, type, [](const auto& entry) { return entry.first; });
  return found == std::end(kTypes) ? std::nullopt : std::optional(found->second);
}

std::optional<ScalarType> torch_dtype(DType type) {
  const auto* found =
      std::ranges::find(kTypes, type, [](const auto& entry) { return entry.second; });
  return found == std::end(kTypes) ? std::nullopt : std::optional(found->first);
}

std::optional<ScalarType> archive_type(const std::string& name) {
  if (name == kComplexHalf) return ScalarType::ComplexHalf;
  if (name == kComplexDouble) return ScalarType::ComplexDouble;
  const auto type = format::dtype_from_name(name);
  return type ? torch_dtype(*type) : std::nullopt;
}

std::optional<std::string> archive_type_name(ScalarType type) {
  if (type == ScalarType::ComplexHalf) return kComplexHalf;
  if (type == ScalarType::ComplexDouble) return kComplexDouble;
  const auto found = format_dtype(type);
  return found ? std::optional(std::string(format::dtype_name(*found))) : std::nullopt;
}

}  // namespace accelerant
