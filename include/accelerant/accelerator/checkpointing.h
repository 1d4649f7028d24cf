// What saving and loading the state of a training takes and gives: see Accelerator::save_state.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <type_traits>
#include <vector>

#include "accelerant/tensor/named_state.h"

namespace accelerant {

struct SaveStateOptions {
  // Only copies the state and returns; it is written while the training goes on. The copies need
  // the memory of up to two states. Default: false.
  bool async = false;
};

struct LoadedState {
  std::string path = {};  // of the checkpoint
  int64_t epoch = 0;      // that Accelerator::epochs() goes on with
  int64_t updates = 0;    // of optimizers, before it was saved
};

// Called before the models of a checkpoint are saved or loaded, with their tensors by name, in the
// order of their preparation, and the folder of the checkpoint. What is removed is not saved or
// loaded.
using StateHook = std::function<void(std::vector<StateDict>& models, const std::string& folder)>;

// Of a hook that was registered.
class StateHookHandle {
 public:
  explicit StateHookHandle(std::weak_ptr<StateHook> hook) : hook_(std::move(hook)) {}

  // The hook is not called any more. Without this it is, as long as the Accelerator lives.
  void remove() {
    if (const auto hook = hook_.lock()) *hook = nullptr;
  }

 private:
  std::weak_ptr<StateHook> hook_;
};

namespace detail {

template <class T>
concept SavedForm =
    std::same_as<T, NamedState> || std::same_as<T, StateDict> || std::same_as<T, nlohmann::json>;

// Has state_dict() and takes the same in load_state_dict().
template <class T>
concept Checkpointable = requires(T& object) {
  requires SavedForm<std::remove_cvref_t<decltype(object.state_dict())>>;
  object.load_state_dict(object.state_dict());
};

template <SavedForm Form>
NamedState to_named_state(const Form& state) {
  if constexpr (std::same_as<Form, NamedState>) {
    return state;
  } else if constexpr (std::same_as<Form, StateDict>) {
    return {.tensors = state};
  } else {
    return {.values = state};
  }
}

template <SavedForm Form>
const Form& from_named_state(const NamedState& state) {
  if constexpr (std::same_as<Form, NamedState>) {
    return state;
  } else if constexpr (std::same_as<Form, StateDict>) {
    return state.tensors;
  } else {
    return *state.values;
  }
}

// An object of the program's own in checkpoints.
struct CustomObject {
  std::string name = {};
  std::function<NamedState()> save = {};
  std::function<void(const NamedState&)> load = {};
};

}  // namespace detail
}  // namespace accelerant
