#include "format/plain_value.h"

#include <bit>
#include <cmath>
#include <limits>

#include "accelerant/core/error.h"

namespace accelerant::format {

PlainValue::PlainValue(PlainBytes value) : content_(std::move(value)) {}
PlainValue::PlainValue(PlainList value) : content_(std::move(value)) {}
PlainValue::PlainValue(PlainTuple value) : content_(std::move(value)) {}
PlainValue::PlainValue(PlainSet value) : content_(std::move(value)) {}
PlainValue::PlainValue(PlainDict value) : content_(std::move(value)) {}
PlainValue::PlainValue(PlainDtype value) : content_(std::move(value)) {}
PlainValue::PlainValue(PlainDevice value) : content_(std::move(value)) {}
PlainValue::PlainValue(PlainTensor value) : content_(std::move(value)) {}

std::string_view name_of(PlainValue::Kind kind) {
  using Kind = PlainValue::Kind;
  switch (kind) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::string:
      return "str";
    case Kind::bytes:
      return "bytes";
    case Kind::list:
      return "list";
    case Kind::tuple:
      return "tuple";
    case Kind::set:
      return "set";
    case Kind::dict:
      return "dict";
    case Kind::dtype:
      return "torch.dtype";
    case Kind::device:
      return "torch.device";
    case Kind::tensor:
      return "torch.Tensor";
  }
  return "unknown";
}

namespace {

[[noreturn]] void refuse_kind(std::string_view expected, PlainValue::Kind got) {
  throw Error(ErrorDetails{.problem = "a value has the wrong type",
                           .expected = std::string(expected),
                           .got = std::string(name_of(got))});
}

template <class T>
const T& content_as(const PlainValue& value, PlainValue::Kind kind) {
  const T* const content = std::get_if<T>(&value.content());
  if (content == nullptr) refuse_kind(name_of(kind), value.kind());
  return *content;
}

}  // namespace

int64_t PlainValue::checked_unsigned(uint64_t value) {
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw Error(ErrorDetails{.problem = "an integer is too large",
                             .expected = "at most 9223372036854775807",
                             .got = std::to_string(value)});
  }
  return static_cast<int64_t>(value);
}

bool PlainValue::as_bool() const { return content_as<bool>(*this, Kind::boolean); }
int64_t PlainValue::as_int() const { return content_as<int64_t>(*this, Kind::integer); }

double PlainValue::as_real() const {
  if (const int64_t* const integer = std::get_if<int64_t>(&content_)) {
    return static_cast<double>(*integer);
  }
  return content_as<double>(*this, Kind::real);
}

const std::string& PlainValue::as_string() const {
  return content_as<std::string>(*this, Kind::string);
}
const PlainList& PlainValue::as_list() const { return content_as<PlainList>(*this, Kind::list); }
const PlainTuple& PlainValue::as_tuple() const {
  return content_as<PlainTuple>(*this, Kind::tuple);
}
const PlainDict& PlainValue::as_dict() const { return content_as<PlainDict>(*this, Kind::dict); }
const PlainTensor& PlainValue::as_tensor() const {
  return content_as<PlainTensor>(*this, Kind::tensor);
}

const PlainValue& PlainValue::at(std::string_view key) const {
  const PlainDict& dict = as_dict();
  if (const PlainValue* const value = dict.find(key)) return *value;
  constexpr std::size_t most_names = 20;
  std::string names;
  for (std::size_t i = 0; i < dict.items.size(); ++i) {
    const std::string* const name = std::get_if<std::string>(&dict.items[i].key.content());
    if (i == most_names) names += ", ...";
    if (i == most_names) break;
    names +=
        (i > 0 ? ", " : "") + (name != nullptr ? "'" + *name + "'" : "a key that is not a string");
  }
  throw Error(ErrorDetails{.problem = "a dict lacks a key",
                           .expected = "'" + std::string(key) + "'",
                           .got = names.empty() ? "an empty dict" : names});
}

// --- Keys and nesting ----------------------------------------------------------------------------

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

void refuse_nesting(const std::string& where) {
  throw Error(ErrorDetails{.problem = where + " is nested too deeply",
                           .expected = "at most " + std::to_string(deepest_nesting) + " levels"});
}

}  // namespace accelerant::format
