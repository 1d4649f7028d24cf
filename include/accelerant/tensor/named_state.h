// State by name: the tensors of a model, or what an object saves of itself: tensors, and plain
// values as JSON.
//
//   NamedState state_dict() const {
//     return {.values = nlohmann::json{{"step", step_}}, .tensors = {{"average", average_}}};
//   }
//   void load_state_dict(const NamedState& state) { step_ = state.values->at("step"); ... }
//
// Include <nlohmann/json.hpp> to fill in or read values; it takes longer to compile than this whole
// library. The tensors are the object's own, not copies: whoever keeps them for later must copy
// them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/ordered_dict.h>

#include <concepts>
#include <cstddef>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>

namespace torch::nn {
class Module;
}

namespace accelerant {

// Tensors by name, for example the parameters and buffers of a model in the order of registration.
using StateDict = torch::OrderedDict<std::string, at::Tensor>;

// A nlohmann::json, initially an empty object, that is used like a pointer. Copying it copies its
// content. A moved-from object may only be destroyed or assigned to.
class StateValues {
 public:
  StateValues();
  ~StateValues();
  StateValues(const StateValues& other);
  StateValues(StateValues&& other) noexcept;
  StateValues& operator=(const StateValues& other);
  StateValues& operator=(StateValues&& other) noexcept;

  // From a json only, not from a braced list, which could mean an object as well as an array.
  template <std::same_as<nlohmann::json> Json>
  StateValues(Json json) : StateValues(nullptr, std::move(json)) {}

  nlohmann::json& operator*() { return *json_; }
  const nlohmann::json& operator*() const { return *json_; }
  nlohmann::json* operator->() { return json_.get(); }
  const nlohmann::json* operator->() const { return json_.get(); }

  // The value of a key. A missing key is added with the value null; on a const object it throws.
  nlohmann::json& operator[](const std::string& key);
  const nlohmann::json& operator[](const std::string& key) const;

  bool operator==(const StateValues& other) const;

 private:
  StateValues(std::nullptr_t, nlohmann::json&& json);

  std::unique_ptr<nlohmann::json> json_;
};

// What an object saves of itself.
struct NamedState {
  StateValues values = StateValues();
  StateDict tensors = StateDict();
};

namespace detail {

// A prepared model.
template <class M>
concept HasStateDict = requires(const M& model) {
  { model.state_dict() } -> std::same_as<StateDict>;
};

// torch::nn::Linear and everything made by TORCH_MODULE.
template <class M>
concept ModuleHolder = requires(const M& holder) {
  typename M::ContainedType;
  { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
};

}  // namespace detail
}  // namespace accelerant
