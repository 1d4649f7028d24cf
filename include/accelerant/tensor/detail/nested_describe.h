// Writes down how nested data is built, for comparing it between processes and for messages:
//
//   {loss: float32[], logits: [float32[8, 10], float32[8, 10]]}
//
// For the collectives; programs normally do not need it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <type_traits>

#include "accelerant/tensor/detail/nesting.h"

namespace accelerant::detail {

template <class T>
struct Describe {  // the leaf: its value is of no interest
  static void write(const T&, std::string& text, auto&) { text += "value"; }
};

template <>
struct Describe<at::Tensor> {
  static void write(const at::Tensor& tensor, std::string& text, auto& f) { text += f(tensor); }
};

template <class Key>
std::string key_text(const Key& key) {
  if constexpr (std::is_convertible_v<Key, std::string_view>) {
    return std::string(std::string_view(key));
  } else if constexpr (std::is_arithmetic_v<Key>) {
    return std::to_string(key);
  } else {
    return "key";
  }
}

// Writes a comma in front of every part but the first.
struct CommaSeparated {
  std::string& text;
  bool first = true;
  void next() {
    if (!first) text += ", ";
    first = false;
  }
};

template <class List>
struct DescribeList {
  static void write(const List& values, std::string& text, auto& f) {
    CommaSeparated list{text};
    text += '[';
    for (const auto& value : values) {
      list.next();
      Describe<typename List::value_type>::write(value, text, f);
    }
    text += ']';
  }
};

template <class T, class Allocator>
struct Describe<std::vector<T, Allocator>> : DescribeList<std::vector<T, Allocator>> {};

template <class T, std::size_t n>
struct Describe<std::array<T, n>> : DescribeList<std::array<T, n>> {};

template <class... Ts>
struct Describe<std::tuple<Ts...>> {
  static void write(const std::tuple<Ts...>& values, std::string& text, auto& f) {
    CommaSeparated list{text};
    text += '(';
    std::apply(
        [&](const Ts&... value) { ((list.next(), Describe<Ts>::write(value, text, f)), ...); },
        values);
    text += ')';
  }
};

template <class A, class B>
struct Describe<std::pair<A, B>> {
  static void write(const std::pair<A, B>& value, std::string& text, auto& f) {
    text += '(';
    Describe<A>::write(value.first, text, f);
    text += ", ";
    Describe<B>::write(value.second, text, f);
    text += ')';
  }
};

template <class T>
struct Describe<std::optional<T>> {
  static void write(const std::optional<T>& value, std::string& text, auto& f) {
    if (value) {
      Describe<T>::write(*value, text, f);
    } else {
      text += "nothing";
    }
  }
};

template <class Map>
struct DescribeMap {
  static void write(const Map& values, std::string& text, auto& f) {
    CommaSeparated list{text};
    text += '{';
    NestingOfMap<Map>::each(values, [&](const auto& key, const auto& value) {
      list.next();
      text += key_text(key) + ": ";
      Describe<typename Map::mapped_type>::write(value, text, f);
    });
    text += '}';
  }
};

template <class... Ts>
struct Describe<std::map<Ts...>> : DescribeMap<std::map<Ts...>> {};

template <class... Ts>
struct Describe<std::unordered_map<Ts...>> : DescribeMap<std::unordered_map<Ts...>> {};

template <HasFields T>
struct Describe<T> {
  static void write(const T& value, std::string& text, auto& f) {
    CommaSeparated list{text};
    text += '{';
    NestedFields<T>::visit(value, [&]<class Field>(const Field& field) {
      list.next();
      Describe<std::remove_cv_t<Field>>::write(field, text, f);
    });
    text += '}';
  }
};

// How `value` is built, in the order of visit_tensors; a tensor is written as f(tensor) says.
template <class T, class F>
std::string describe_nesting(const T& value, F&& f) {
  std::string text;
  Describe<T>::write(value, text, f);
  return text;
}

}  // namespace accelerant::detail
