#include "format/plain_value.h"

#include <limits>

#include "accelerant/core/error.h"

namespace accelerant::format {

// --- Storages -------------------------------------------------------------------------------------

PlainStorage::PlainStorage(std::span<const std::byte> bytes, std::shared_ptr<const void> owner)
    : bytes_(bytes), owner_(std::move(owner)) {}

PlainStorage::PlainStorage(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                           std::string key, std::string location, std::function<void()> check)
    : bytes_(bytes),
      owner_(std::move(owner)),
      key_(std::move(key)),
      location_(std::move(location)),
      check_(std::move(check)) {}

std::span<const std::byte> PlainStorage::bytes() const {
  // A check that throws leaves the flag unset, so that the next call throws too.
  if (check_) std::call_once(checked_, check_);
  return bytes_;
}

// --- Values ---------------------------------------------------------------------------------------

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
  throw Error(ErrorDetails{.problem = "a value of plain data has another type",
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
    throw Error(ErrorDetails{.problem = "an integer does not fit into plain data",
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
        (i > 0 ? ", " : "") + (name != nullptr ? "'" + *name + "'" : "a key that is no string");
  }
  throw Error(ErrorDetails{.problem = "a dict of plain data lacks a key",
                           .expected = "'" + std::string(key) + "'",
                           .got = names.empty() ? "an empty dict" : names});
}

}  // namespace accelerant::format
