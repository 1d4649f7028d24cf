// Plain data as Python programs keep it in checkpoints: None, numbers, strings, lists, dicts, and
// tensors. torch_archive.h reads and writes it. Independent of torch.
//
//   PlainValue state = read_torch_archive("optimizer.bin");
//   for (const PlainValue& group : state.at("param_groups").as_list()) {
//     const double lr = group.at("lr").as_real();
//   }
//
//   PlainDict scaler;
//   scaler.set("scale", 65536.0);
//   scaler.set("growth_interval", 2000);
//   const PlainValue value = std::move(scaler);
//
// A PlainValue is a value: copies are independent, and an object that a Python program holds in two
// places becomes two objects. Only storages of tensors are shared, by shared pointers, because tied
// weights must stay tied and because storages are big.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "format/plain_tensor.h"

namespace accelerant::format {

class PlainValue;

using PlainList = std::vector<PlainValue>;

// The containers are templates only so that their fields can have defaults while PlainValue, which
// holds them, is incomplete. Use PlainTuple, PlainSet, PlainItem and PlainDict.
template <class Value>
struct PlainTupleOf {
  std::vector<Value> items = {};
  bool is_size = false;  // a torch.Size rather than a tuple; its items are integers
};
using PlainTuple = PlainTupleOf<PlainValue>;

// A set, in the order of the file.
template <class Value>
struct PlainSetOf {
  std::vector<Value> items = {};
};
using PlainSet = PlainSetOf<PlainValue>;

struct PlainBytes {
  std::string bytes = {};
  bool is_bytearray = false;  // a bytearray rather than bytes
};

// A torch.dtype as a value, spelled as in PlainTensor::dtype.
struct PlainDtype {
  std::string name = {};
};

// A torch.device, such as "cpu" or "cuda:0".
struct PlainDevice {
  std::string name = {};
};

enum class PlainDictKind {
  plain,    // dict
  ordered,  // collections.OrderedDict, as state dicts of modules are
  counter,  // collections.Counter, as in the state of MultiStepLR
};

// One entry of a dict.
template <class Value>
struct PlainItemOf {
  Value key = {};
  Value value = {};
};
using PlainItem = PlainItemOf<PlainValue>;

// A dict, in the order of insertion. Keys are None, booleans, numbers, strings, bytes, tuples of
// those, dtypes or devices. As in Python, 1, 1.0 and True are the same key.
template <class Value>
struct PlainDictOf {
  PlainDictKind kind = PlainDictKind::plain;
  std::vector<PlainItemOf<Value>> items = {};

  // Python attributes of an OrderedDict; other dicts have none. State dicts of modules have one,
  // "_metadata", with the versions of the modules; load_state_dict uses it to read old files.
  std::vector<PlainItemOf<Value>> attributes = {};

  // The value of a string key, or nullptr. A linear search.
  const Value* find(std::string_view key) const;
  Value* find(std::string_view key);

  // Adds an item, or replaces the value of an existing key.
  void set(std::string_view key, Value value);
};
using PlainDict = PlainDictOf<PlainValue>;

class PlainValue {
 public:
  enum class Kind {
    none,
    boolean,
    integer,
    real,
    string,
    bytes,
    list,
    tuple,
    set,
    dict,
    dtype,
    device,
    tensor,
  };
  // The alternatives, in the order of Kind.
  using Content =
      std::variant<std::monostate, bool, int64_t, double, std::string, PlainBytes, PlainList,
                   PlainTuple, PlainSet, PlainDict, PlainDtype, PlainDevice, PlainTensor>;

  PlainValue() = default;  // None
  // A template, because overloads for bool and int64_t would turn pointers into booleans and make
  // other integers ambiguous.
  template <std::integral T>
  PlainValue(T value) {
    if constexpr (std::same_as<T, bool>) {
      content_ = value;
    } else if constexpr (std::unsigned_integral<T> && sizeof(T) == sizeof(int64_t)) {
      content_ = checked_unsigned(value);
    } else {
      content_ = static_cast<int64_t>(value);
    }
  }
  PlainValue(double value) : content_(value) {}
  PlainValue(const char* value) : content_(std::string(value)) {}
  PlainValue(std::string_view value) : content_(std::string(value)) {}
  PlainValue(std::string value) : content_(std::move(value)) {}
  PlainValue(PlainBytes value);
  PlainValue(PlainList value);
  PlainValue(PlainTuple value);
  PlainValue(PlainSet value);
  PlainValue(PlainDict value);
  PlainValue(PlainDtype value);
  PlainValue(PlainDevice value);
  PlainValue(PlainTensor value);

  Kind kind() const { return static_cast<Kind>(content_.index()); }
  bool is_none() const { return kind() == Kind::none; }

  // The content, for std::visit and std::get_if.
  const Content& content() const { return content_; }
  Content& content() { return content_; }

  // The content as this kind; throws Error, naming both kinds, if it is another.
  bool as_bool() const;
  int64_t as_int() const;
  double as_real() const;  // integers too
  const std::string& as_string() const;
  const PlainList& as_list() const;
  const PlainTuple& as_tuple() const;
  const PlainDict& as_dict() const;
  const PlainTensor& as_tensor() const;

  // The value of a string key of a dict; throws Error, naming the existing keys, if it is missing.
  const PlainValue& at(std::string_view key) const;

 private:
  // Throws Error if it does not fit.
  static int64_t checked_unsigned(uint64_t value);

  Content content_;
};

// The Python name of a kind, such as "dict".
std::string_view name_of(PlainValue::Kind kind);

// A text that is equal for two values if they are the same key in Python, as 1, 1.0 and True are.
// Empty if the value cannot be a key: lists, dicts, sets, bytearrays, tensors, and nan, which
// equals nothing.
std::optional<std::string> dict_key(const PlainValue& value);

// How deeply plain data may be nested. Values are walked recursively, so a limit is needed;
// Python's own pickler gives up earlier, at about 500.
inline constexpr int deepest_nesting = 1000;

// Throws the Error for data that is nested more deeply.
[[noreturn]] void refuse_nesting(const std::string& where);

template <class Value>
const Value* PlainDictOf<Value>::find(std::string_view key) const {
  for (const PlainItemOf<Value>& item : items) {
    const std::string* const text = std::get_if<std::string>(&item.key.content());
    if (text != nullptr && *text == key) return &item.value;
  }
  return nullptr;
}

template <class Value>
Value* PlainDictOf<Value>::find(std::string_view key) {
  return const_cast<Value*>(std::as_const(*this).find(key));
}

template <class Value>
void PlainDictOf<Value>::set(std::string_view key, Value value) {
  if (Value* const present = find(key)) {
    *present = std::move(value);
  } else {
    items.push_back({.key = key, .value = std::move(value)});
  }
}

}  // namespace accelerant::format
