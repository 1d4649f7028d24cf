#include "cli/weights/tensor_statistics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "format/float_conversion.h"

namespace accelerant::cli {
namespace {

using format::DType;
using nlohmann::json;

template <class Value>
json number(Value value) {
  if constexpr (std::is_floating_point_v<Value>) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  }
  return value;
}

// `Bits` is an element as it is stored; `value_of` turns it into a number.
template <class Bits, class ValueOf>
TensorStatistics collect(const checkpoint::WeightFile& file, const checkpoint::WeightTensor& tensor,
                         std::size_t first_values, const ValueOf& value_of) {
  using Value = decltype(value_of(Bits{}));
  TensorStatistics found;
  std::uint64_t counted = 0;
  Value smallest = {};
  Value largest = {};
  long double sum = 0;
  file.for_each_piece(tensor, [&](std::span<const std::byte> piece) {
    for (std::size_t at = 0; at + sizeof(Bits) <= piece.size(); at += sizeof(Bits)) {
      Bits bits;
      std::memcpy(&bits, piece.data() + at, sizeof bits);
      const Value value = value_of(bits);
      if (found.first.size() < first_values) found.first.push_back(number(value));
      if constexpr (std::is_floating_point_v<Value>) {
        found.nan += static_cast<std::uint64_t>(std::isnan(value));
        found.inf += static_cast<std::uint64_t>(std::isinf(value));
        if (!std::isfinite(value)) continue;
      }
      smallest = counted == 0 ? value : std::min(smallest, value);
      largest = counted == 0 ? value : std::max(largest, value);
      sum += static_cast<long double>(value);
      ++counted;
    }
  });
  if (counted == 0) return found;
  found.min = smallest;
  found.max = largest;
  found.mean = static_cast<double>(sum / static_cast<long double>(counted));
  return found;
}

}  // namespace

TensorStatistics statistics_of(const checkpoint::WeightFile& file,
                               const checkpoint::WeightTensor& tensor, std::size_t first_values) {
  const auto plain = [&]<class T>(T) {
    return collect<T>(file, tensor, first_values, [](T value) { return value; });
  };
  const auto as_double = [&]<class T>(T, auto convert) {
    return collect<T>(file, tensor, first_values,
                      [convert](T bits) { return static_cast<double>(convert(bits)); });
  };
  const auto unknown = TensorStatistics{.is_known = false};
  if (!tensor.type) return unknown;
  switch (*tensor.type) {
    case DType::f64:
      return plain(double{});
    case DType::f32:
      return as_double(float{}, [](float value) { return value; });
    case DType::f16:
      return as_double(std::uint16_t{}, format::half_to_float);
    case DType::bf16:
      return as_double(std::uint16_t{}, format::bfloat16_to_float);
    case DType::i64:
      return plain(std::int64_t{});
    case DType::u64:
      return plain(std::uint64_t{});
    case DType::i32:
      return plain(std::int32_t{});
    case DType::u32:
      return plain(std::uint32_t{});
    case DType::i16:
      return plain(std::int16_t{});
    case DType::u16:
      return plain(std::uint16_t{});
    case DType::i8:
      return plain(std::int8_t{});
    case DType::u8:
    case DType::boolean:
      return plain(std::uint8_t{});
    default:
      return unknown;
  }
}

}  // namespace accelerant::cli
