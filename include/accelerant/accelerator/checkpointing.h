// Types for saving and loading the state of a training run: see Accelerator::save_state.
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
  // Copy the state and return; the files are written while training continues. The copies need
  // memory for up to two states. Default: false.
  bool async = false;
};

struct LoadedState {
  std::string path = {};  // the folder of the checkpoint
  int64_t epoch = 0;      // where Accelerator::epochs() continues
  int64_t updates = 0;    // optimizer updates before the save
};

// Called before the models of a checkpoint are saved or loaded. Gets the tensors of each model by
// name, in the order of preparation, and the folder of the checkpoint. Tensors that the hook
// removes are not saved or loaded.
using StateHook = std::function<void(std::vector<StateDict>& models, const std::string& folder)>;

// The handle of a registered hook.
class StateHookHandle {
 public:
  explicit StateHookHandle(std::weak_ptr<StateHook> hook) : hook_(std::move(hook)) {}

  // Unregisters the hook. Otherwise it stays registered as long as the Accelerator lives.
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

// A type with state_dict() and a load_state_dict() that takes the same value.
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

// A registered object in checkpoints.
struct CustomObject {
  std::string name = {};
  std::function<NamedState()> save = {};
  std::function<void(const NamedState&)> load = {};
};

}  // namespace detail
}  // namespace accelerant
