// Nested data: tensors inside the containers and structs that models return.
//
//   visit_tensors(outputs, [](const at::Tensor& t) { ... });
//   auto halves = map_tensors(outputs, [](const at::Tensor& t) { return t.to(at::kHalf); });
//
// Understood at any depth: at::Tensor, std::vector, std::array, std::tuple, std::pair,
// std::optional, std::map, std::unordered_map (their keys are kept, and visited in order), and structs
// that name their fields:
//
//   struct Output {
//     at::Tensor logits;
//     std::optional<at::Tensor> loss;
//     static void visit_fields(auto& self, auto&& visit) { visit(self.logits); visit(self.loss); }
//   };
//
// A struct derived from such a one must name all fields again. For a struct that cannot be changed,
// specialise accelerant::NestedFields with a static `visit` of the same form. Everything else (numbers,
// strings, ...) is a leaf that stays as it is.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accelerant {

// How the fields of a struct are visited; the primary template asks the struct itself.
template <class T>
struct NestedFields {
  static void visit(auto& self, auto&& visitor) requires requires {
    T::visit_fields(self, visitor);
  }
  { T::visit_fields(self, visitor); }
};

namespace detail {

struct IgnoreField {
  template <class Field>
  void operator()(Field&) const {}
};

template <class T>
concept HasFields = requires(T& self, IgnoreField ignore) {
  NestedFields<T>::visit(self, ignore);
};

template <class T>
struct Nesting {  // the leaf
  static constexpr bool only_tensors = false;
  // A class that is not a string may well hold tensors that nobody sees.
  static constexpr bool understood =
      !std::is_class_v<T> || std::is_convertible_v<T, std::string_view>;
  static void visit(const T&, auto&) {}
  static T map(const T& value, auto&) { return value; }
};

template <>
struct Nesting<at::Tensor> {
  static constexpr bool only_tensors = true;
  static constexpr bool understood = true;
  static void visit(const at::Tensor& tensor, auto& f) { f(tensor); }
  static at::Tensor map(const at::Tensor& tensor, auto& f) { return f(tensor); }
};

template <class T, class Allocator>
struct Nesting<std::vector<T, Allocator>> {
  static constexpr bool only_tensors = Nesting<T>::only_tensors;
  static constexpr bool understood = Nesting<T>::understood;
  static void visit(const std::vector<T, Allocator>& values, auto& f) {
    for (const T& value : values) Nesting<T>::visit(value, f);
  }
  static std::vector<T, Allocator> map(const std::vector<T, Allocator>& values, auto& f) {
    std::vector<T, Allocator> result;
    result.reserve(values.size());
    for (const T& value : values) result.push_back(Nesting<T>::map(value, f));
    return result;
  }
};

template <class T, std::size_t n>
struct Nesting<std::array<T, n>> {
  static constexpr bool only_tensors = Nesting<T>::only_tensors;
  static constexpr bool understood = Nesting<T>::understood;
  static void visit(const std::array<T, n>& values, auto& f) {
    for (const T& value : values) Nesting<T>::visit(value, f);
  }
  static std::array<T, n> map(std::array<T, n> values, auto& f) {
    for (T& value : values) value = Nesting<T>::map(value, f);
    return values;
  }
};

template <class... Ts>
struct Nesting<std::tuple<Ts...>> {
  static constexpr bool only_tensors = (Nesting<Ts>::only_tensors && ...);
  static constexpr bool understood = (Nesting<Ts>::understood && ...);
  static void visit(const std::tuple<Ts...>& values, auto& f) {
    std::apply([&](const Ts&... value) { (Nesting<Ts>::visit(value, f), ...); }, values);
  }
  static std::tuple<Ts...> map(const std::tuple<Ts...>& values, auto& f) {
    // Braces: the elements are mapped from left to right.
    return std::apply(
        [&](const Ts&... value) { return std::tuple<Ts...>{Nesting<Ts>::map(value, f)...}; },
        values);
  }
};

template <class A, class B>
struct Nesting<std::pair<A, B>> {
  static constexpr bool only_tensors = Nesting<A>::only_tensors && Nesting<B>::only_tensors;
  static constexpr bool understood = Nesting<A>::understood && Nesting<B>::understood;
  static void visit(const std::pair<A, B>& value, auto& f) {
    Nesting<A>::visit(value.first, f);
    Nesting<B>::visit(value.second, f);
  }
  static std::pair<A, B> map(const std::pair<A, B>& value, auto& f) {
    return {Nesting<A>::map(value.first, f), Nesting<B>::map(value.second, f)};
  }
};

template <class T>
struct Nesting<std::optional<T>> {
  static constexpr bool only_tensors = Nesting<T>::only_tensors;
  static constexpr bool understood = Nesting<T>::understood;
  static void visit(const std::optional<T>& value, auto& f) {
    if (value) Nesting<T>::visit(*value, f);
  }
  static std::optional<T> map(const std::optional<T>& value, auto& f) {
    if (!value) return std::nullopt;
    return Nesting<T>::map(*value, f);
  }
};

template <class Map>
struct NestingOfMap {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;
  static constexpr bool only_tensors = Nesting<Value>::only_tensors;
  static constexpr bool understood = Nesting<Value>::understood;

  // Calls f(key, value) in the order of the keys: that of a hash table may differ between two tables, and
  // between processes that exchange what is in them.
  template <class SomeMap>
  static void each(SomeMap& values, auto&& f) {
    constexpr bool is_sorted = requires { typename Map::key_compare; };
    if constexpr (is_sorted || !std::totally_ordered<Key>) {
      for (auto& [key, value] : values) f(key, value);
    } else {
      std::vector<decltype(&*values.begin())> entries;
      for (auto& entry : values) entries.push_back(&entry);
      std::sort(entries.begin(), entries.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
      for (auto* entry : entries) f(entry->first, entry->second);
    }
  }

  static void visit(const Map& values, auto& f) {
    each(values, [&](const Key&, const Value& value) { Nesting<Value>::visit(value, f); });
  }
  static Map map(Map values, auto& f) {
    each(values, [&](const Key&, Value& value) { value = Nesting<Value>::map(value, f); });
    return values;
  }
};

template <class... Ts>
struct Nesting<std::map<Ts...>> : NestingOfMap<std::map<Ts...>> {};

template <class... Ts>
struct Nesting<std::unordered_map<Ts...>> : NestingOfMap<std::unordered_map<Ts...>> {};

template <HasFields T>
struct Nesting<T> {
  static constexpr bool only_tensors = true;  // a struct speaks for the fields it names
  static constexpr bool understood = true;
  static void visit(const T& value, auto& f) {
    NestedFields<T>::visit(value, [&]<class Field>(const Field& field) {
      Nesting<std::remove_cv_t<Field>>::visit(field, f);
    });
  }
  static T map(T value, auto& f) {
    NestedFields<T>::visit(
        value, [&]<class Field>(Field& field) { field = Nesting<Field>::map(field, f); });
    return value;
  }
};

}  // namespace detail

// Data in which all tensors are found: no part of it is a class we do not know.
template <class T>
concept UnderstoodNesting = detail::Nesting<T>::understood;

// A tensor, or a container or struct with tensors and nothing else inside.
template <class T>
concept NestedTensors = detail::Nesting<T>::only_tensors;

// Calls f with every tensor in `value`, in order.
template <class T, class F>
void visit_tensors(const T& value, F&& f) {
  detail::Nesting<T>::visit(value, f);
}

// A copy of `value` in which every tensor t is f(t); the structure and all other leaves are kept.
template <class T, class F>
T map_tensors(const T& value, F&& f) {
  return detail::Nesting<T>::map(value, f);
}

}  // namespace accelerant
