// Several states in one, distinguished by prefixes of their names.
#pragma once

#include <string>

#include "accelerant/tensor/named_state.h"

namespace accelerant {

inline void add_with_prefix(StateDict& into, const std::string& prefix, const StateDict& tensors) {
  for (const auto& item : tensors) into.insert(prefix + item.key(), item.value());
}

// The tensors whose names begin with the prefix, with the prefix removed.
inline StateDict with_prefix(const StateDict& tensors, const std::string& prefix) {
  StateDict result;
  for (const auto& item : tensors) {
    if (item.key().starts_with(prefix)) {
      result.insert(item.key().substr(prefix.size()), item.value());
    }
  }
  return result;
}

}  // namespace accelerant
