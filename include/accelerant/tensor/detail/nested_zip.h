// Walks several pieces of nested data of one type at once. For concatenate() and its like; programs
// normally do not need it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "accelerant/tensor/detail/nesting.h"

namespace accelerant::detail {

[[noreturn]] void refuse_different(const std::string& what);

template <class T>
using Items = std::vector<const T*>;  // at least one

template <class T>
struct Zip {  // the leaf
  static T map(const Items<T>& items, auto&) {
    for (const T* item : items) {
      if (!(*item == *items.front())) refuse_different("a value that is not a tensor");
    }
    return *items.front();
  }
};

template <class T, class F>
T zip_tensors(const Items<T>& items, F&& f) {
  return Zip<T>::map(items, f);
}

// The part that `get` takes out of each item.
template <class Part, class T>
Items<Part> parts_of(const Items<T>& items, auto&& get) {
  Items<Part> parts;
  parts.reserve(items.size());
  for (const T* item : items) parts.push_back(std::addressof(get(*item)));
  return parts;
}

template <>
struct Zip<at::Tensor> {
  static at::Tensor map(const Items<at::Tensor>& items, auto& f) { return f(items); }
};

template <class T, class Allocator>
struct Zip<std::vector<T, Allocator>> {
  using List = std::vector<T, Allocator>;
  static List map(const Items<List>& items, auto& f) {
    List result;
    result.reserve(items.front()->size());
    for (const List* item : items) {
      if (item->size() != items.front()->size()) refuse_different("the length of a list");
    }
    for (std::size_t i = 0; i < items.front()->size(); ++i) {
      if constexpr (std::is_same_v<T, bool>) {  // has no addresses
        for (const List* item : items) {
          if ((*item)[i] != (*items.front())[i]) refuse_different("a value that is not a tensor");
        }
        result.push_back((*items.front())[i]);
      } else {
        result.push_back(Zip<T>::map(parts_of<T>(
                                         items, [i](const List& item) -> auto& { return item[i]; }),
                                     f));
      }
    }
    return result;
  }
};

template <class T, std::size_t n>
struct Zip<std::array<T, n>> {
  using List = std::array<T, n>;
  static List map(const Items<List>& items, auto& f) {
    List result = *items.front();
    for (std::size_t i = 0; i < n; ++i) {
      result[i] = Zip<T>::map(parts_of<T>(
                                  items, [i](const List& item) -> auto& { return item[i]; }),
                              f);
    }
    return result;
  }
};

template <class... Ts>
struct Zip<std::tuple<Ts...>> {
  using Tuple = std::tuple<Ts...>;
  static Tuple map(const Items<Tuple>& items, auto& f) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      // Braces: the elements are made from left to right.
      return Tuple{
          Zip<Ts>::map(parts_of<Ts>(
                           items, [](const Tuple& item) -> auto& { return std::get<i>(item); }),
                       f)...};
    }
    (std::index_sequence_for<Ts...>{});
  }
};

template <class A, class B>
struct Zip<std::pair<A, B>> {
  using Pair = std::pair<A, B>;
  static Pair map(const Items<Pair>& items, auto& f) {
    return {Zip<A>::map(parts_of<A>(
                            items, [](const Pair& item) -> auto& { return item.first; }),
                        f),
            Zip<B>::map(parts_of<B>(
                            items, [](const Pair& item) -> auto& { return item.second; }),
                        f)};
  }
};

template <class T>
struct Zip<std::optional<T>> {
  using Optional = std::optional<T>;
  static Optional map(const Items<Optional>& items, auto& f) {
    for (const Optional* item : items) {
      if (item->has_value() != items.front()->has_value()) {
        refuse_different("whether an optional part is there");
      }
    }
    if (!items.front()->has_value()) return std::nullopt;
    return Zip<T>::map(parts_of<T>(
                           items, [](const Optional& item) -> auto& { return *item; }),
                       f);
  }
};

template <class Map>
struct ZipOfMap {
  using Value = typename Map::mapped_type;
  static Map map(const Items<Map>& items, auto& f) {
    for (const Map* item : items) {
      if (item->size() != items.front()->size()) refuse_different("the number of keys");
    }
    Map result = *items.front();
    for (auto& [key, value] : result) {
      for (const Map* item : items) {
        if (item->find(key) == item->end()) refuse_different("a key");
      }
      value = Zip<Value>::map(
          parts_of<Value>(
              items, [&key = key](const Map& item) -> auto& { return item.find(key)->second; }),
          f);
    }
    return result;
  }
};

template <class... Ts>
struct Zip<std::map<Ts...>> : ZipOfMap<std::map<Ts...>> {};

template <class... Ts>
struct Zip<std::unordered_map<Ts...>> : ZipOfMap<std::unordered_map<Ts...>> {};

template <HasFields T>
struct Zip<T> {
  static T map(const Items<T>& items, auto& f) {
    // A struct only lets its fields be visited, so their addresses are noted by number.
    std::vector<std::vector<const void*>> fields(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      NestedFields<T>::visit(
          *items[i], [&](const auto& field) { fields[i].push_back(std::addressof(field)); });
    }
    T result = *items.front();
    std::size_t number = 0;
    NestedFields<T>::visit(result, [&]<class Field>(Field& field) {
      Items<Field> same;
      for (const auto& addresses : fields)
        same.push_back(static_cast<const Field*>(addresses[number]));
      field = Zip<Field>::map(same, f);
      ++number;
    });
    return result;
  }
};

}  // namespace accelerant::detail
