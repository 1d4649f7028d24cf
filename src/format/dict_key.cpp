#include "format/dict_key.h"

#include <bit>
#include <cmath>

namespace accelerant::format {
namespace {

std::string tagged(char tag, const std::string& text) {
  return tag + std::to_string(text.size()) + ':' + text;
}

struct KeyOf {
  using Result = std::optional<std::string>;

  Result operator()(std::monostate) const { return "n;"; }
  Result operator()(bool value) const { return value ? "i1;" : "i0;"; }
  Result operator()(int64_t value) const { return "i" + std::to_string(value) + ";"; }
  Result operator()(double value) const {
    if (std::isnan(value)) return std::nullopt;
    constexpr double bound = 9223372036854775808.0;  // 2^63
    if (value == std::trunc(value) && value >= -bound && value < bound) {
      return (*this)(static_cast<int64_t>(value));
    }
    return "d" + std::to_string(std::bit_cast<uint64_t>(value)) + ";";
  }
  Result operator()(const std::string& value) const { return tagged('s', value); }
  Result operator()(const PlainBytes& value) const {
    if (value.is_bytearray) return std::nullopt;
    return tagged('b', value.bytes);
  }
  Result operator()(const PlainTuple& value) const {
    std::string key = "(";
    for (const PlainValue& item : value.items) {
      const Result part = std::visit(*this, item.content());
      if (!part) return std::nullopt;
      key += *part;
    }
    return key + ")";
  }
  Result operator()(const PlainDtype& value) const { return tagged('t', value.name); }
  Result operator()(const PlainDevice& value) const { return tagged('v', value.name); }
  Result operator()(const PlainList&) const { return std::nullopt; }
  Result operator()(const PlainSet&) const { return std::nullopt; }
  Result operator()(const PlainDict&) const { return std::nullopt; }
  Result operator()(const PlainTensor&) const { return std::nullopt; }
};

}  // namespace

std::optional<std::string> dict_key(const PlainValue& value) {
  return std::visit(KeyOf{}, value.content());
}

}  // namespace accelerant::format
