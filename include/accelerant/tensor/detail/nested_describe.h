// Describes the structure of nested data, for comparing it between processes and for messages:
//
//   {loss: float32[], logits: [float32[8, 10], float32[8, 10]]}
//
// For the collectives; programs normally do not need it.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>

#include "accelerant/tensor/detail/children.h"

namespace accelerant::detail {

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

constexpr std::string_view brackets(Form form) {
  if (form == Form::list || form == Form::array) return "[]";
  return form == Form::tuple ? "()" : "{}";
}

template <class T>
void describe_into(std::string& text, const T& value, auto& f) {
  if constexpr (std::same_as<T, at::Tensor>) {
    text += f(value);
  } else if constexpr (!HasChildren<T>) {
    text += "value";  // the value itself does not matter
  } else if constexpr (Children<T>::form == Form::optional) {
    if (!value) text += "nothing";
    Children<T>::visit(value, [&](const auto& child) { describe_into(text, child, f); });
  } else {
    constexpr Form form = Children<T>::form;
    std::string_view separator = "";
    const auto describe_child = [&](const std::string& name, const auto& child) {
      text += separator;
      text += name;
      describe_into(text, child, f);
      separator = ", ";
    };
    text += brackets(form)[0];
    if constexpr (form == Form::map) {
      Children<T>::visit_entries(value, [&](const auto& key, const auto& child) {
        describe_child(key_text(key) + ": ", child);
      });
    } else {
      Children<T>::visit(value, [&](const auto& child) { describe_child("", child); });
    }
    text += brackets(form)[1];
  }
}

// The structure of `value`, in the order of visit_tensors; f(tensor) describes a tensor.
template <class T, class F>
std::string describe_nesting(const T& value, F&& f) {
  std::string text;
  describe_into(text, value, f);
  return text;
}

}  // namespace accelerant::detail
