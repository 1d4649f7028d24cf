// What an object saves of itself: plain values as JSON, and tensors by name.
//
//   NamedState state_dict() const { return {.values = {{"step", step_}}, .tensors = {{"average", average_}}}; }
//   void load_state_dict(const NamedState& state) { step_ = state.values.at("step"); ... }
//
// The tensors are the object's own, not copies: whoever saves them later copies them.
#pragma once

#include <nlohmann/json.hpp>

#include "accelerant/tensor/state_dict.h"

namespace accelerant {

struct NamedState {
  nlohmann::json values = nlohmann::json::object();
  StateDict tensors = StateDict();
};

}  // namespace accelerant
