// Walks several pieces of nested data of one type at once. For concatenate() and similar functions;
// programs normally do not need it.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "accelerant/tensor/detail/children.h"

namespace accelerant::detail {

[[noreturn]] void refuse_different(const std::string& what);

template <class T>
using Items = std::vector<const T*>;  // at least one

template <class T>
void require_same_children(const Items<T>& items) {
  constexpr Form form = Children<T>::form;
  const T& first = *items.front();
  for (const T* item : items) {
    if constexpr (form == Form::list) {
      if (item->size() != first.size()) refuse_different("the length of a list");
    } else if constexpr (form == Form::optional) {
      if (item->has_value() != first.has_value()) {
        refuse_different("whether an optional part is present");
      }
    } else if constexpr (form == Form::map) {
      if (item->size() != first.size()) refuse_different("the number of keys");
      for (const auto& entry : first) {
        if (item->find(entry.first) == item->end()) refuse_different("a key");
      }
    }
  }
}

template <class T>
constexpr bool children_have_addresses = HasChildren<T>;
template <class Allocator>
constexpr bool children_have_addresses<std::vector<bool, Allocator>> = false;

// Replaces every tensor in `result`, a copy of the first item, by f(tensors of all items).
template <class T, class F>
void zip_into(T& result, const Items<std::remove_const_t<T>>& items, F& f) {
  using Item = std::remove_const_t<T>;
  if constexpr (HasChildren<Item>) require_same_children<Item>(items);
  if constexpr (std::same_as<Item, at::Tensor>) {
    result = f(items);
  } else if constexpr (!children_have_addresses<Item>) {
    for (const Item* item : items) {
      if (!(*item == *items.front())) refuse_different("a value that is not a tensor");
    }
  } else if constexpr (Children<Item>::form == Form::map) {
    Children<Item>::visit_entries(result, [&]<class Child>(const auto& key, Child& child) {
      Items<Child> same;
      for (const Item* item : items) same.push_back(std::addressof(item->find(key)->second));
      zip_into(child, same, f);
    });
  } else {
    // Children can only be visited, so record the items' children by number.
    std::vector<std::vector<const void*>> children(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      Children<Item>::visit(
          *items[i], [&](const auto& child) { children[i].push_back(std::addressof(child)); });
    }
    std::size_t number = 0;
    Children<Item>::visit(result, [&]<class Child>(Child& child) {
      Items<Child> same;
      for (const auto& addresses : children) {
        same.push_back(static_cast<const Child*>(addresses[number]));
      }
      zip_into(child, same, f);
      ++number;
    });
  }
}

// The structure of the items, with f(tensors of all items) in place of every tensor. Throws Error
// if they differ in anything but tensors.
template <class T, class F>
T zip_tensors(const Items<T>& items, F&& f) {
  T result = *items.front();
  zip_into(result, items, f);
  return result;
}

}  // namespace accelerant::detail
