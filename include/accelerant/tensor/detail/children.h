// What nested data consists of: one description of every container, and of structs that name their
// fields. All code that walks through nested data is built on it. Programs include
// accelerant/tensor/nested.h, which explains how a struct names its fields.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace accelerant {

// How to visit the fields of a struct; the primary template asks the struct itself.
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

enum class Form { list, array, tuple, optional, map, fields };

// Exists for types that have children:
//   form             how they are arranged
//   all<Trait>       whether Trait<Child>::value is true for the type of every child
//   visit(self, f)   calls f(child) for each in order; children are const if `self` is
// A type without it is a leaf.
template <class T>
struct Children;

template <class T>
concept HasChildren = requires {
  Children<T>::form;
};

template <class T, class Allocator>
struct Children<std::vector<T, Allocator>> {
  static constexpr Form form = Form::list;
  template <template <class> class Trait>
  static constexpr bool all = Trait<T>::value;
  static void visit(auto& self, auto&& f) {
    for (auto&& child : self) f(child);
  }
};

template <class T, std::size_t n>
struct Children<std::array<T, n>> : Children<std::vector<T>> {
  static constexpr Form form = Form::array;
};

// Tuples of references are leaves: changing a copy would change what they refer to.
template <class... Ts>
requires(std::is_object_v<Ts>&&...) struct Children<std::tuple<Ts...>> {
  static constexpr Form form = Form::tuple;
  template <template <class> class Trait>
  static constexpr bool all = (Trait<Ts>::value && ...);
  static void visit(auto& self, auto&& f) {
    std::apply([&](auto&... child) { (f(child), ...); }, self);
  }
};

template <class A, class B>
requires HasChildren<std::tuple<A, B>>
struct Children<std::pair<A, B>> : Children<std::tuple<A, B>> {
};

template <class T>
struct Children<std::optional<T>> {
  static constexpr Form form = Form::optional;
  template <template <class> class Trait>
  static constexpr bool all = Trait<T>::value;
  static void visit(auto& self, auto&& f) {
    if (self) f(*self);
  }
};

template <class Map>
struct ChildrenOfMap {
  static constexpr Form form = Form::map;
  template <template <class> class Trait>
  static constexpr bool all = Trait<typename Map::mapped_type>::value;
  static void visit(auto& self, auto&& f) {
    visit_entries(self, [&](const auto&, auto& child) { f(child); });
  }

  // Calls f(key, child) in the order of the keys. The order of a hash table may differ between two
  // tables, and between processes that exchange their content.
  static void visit_entries(auto& self, auto&& f) {
    constexpr bool is_sorted = requires { typename Map::key_compare; };
    if constexpr (is_sorted || !std::totally_ordered<typename Map::key_type>) {
      for (auto& [key, child] : self) f(key, child);
    } else {
      std::vector<decltype(&*self.begin())> entries;
      for (auto& entry : self) entries.push_back(&entry);
      std::sort(entries.begin(), entries.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
      for (auto* entry : entries) f(entry->first, entry->second);
    }
  }
};

template <class... Ts>
struct Children<std::map<Ts...>> : ChildrenOfMap<std::map<Ts...>> {};

template <class... Ts>
struct Children<std::unordered_map<Ts...>> : ChildrenOfMap<std::unordered_map<Ts...>> {};

template <HasFields T>
struct Children<T> {
  static constexpr Form form = Form::fields;
  // A struct vouches for the fields it names; their types are only known when they are visited.
  template <template <class> class Trait>
  static constexpr bool all = true;
  static void visit(auto& self, auto&& f) { NestedFields<T>::visit(self, f); }
};

}  // namespace detail
}  // namespace accelerant
