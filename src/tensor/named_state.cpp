#include "accelerant/tensor/named_state.h"

#include <nlohmann/json.hpp>

namespace accelerant {

using nlohmann::json;

StateValues::StateValues() : StateValues(nullptr, json::object()) {}
StateValues::StateValues(std::nullptr_t, json&& values)
    : json_(std::make_unique<json>(std::move(values))) {}
StateValues::~StateValues() = default;
StateValues::StateValues(const StateValues& other) : StateValues(nullptr, json(*other)) {}
StateValues::StateValues(StateValues&& other) noexcept = default;
StateValues& StateValues::operator=(const StateValues& other) {
  if (this != &other) json_ = std::make_unique<json>(*other);
  return *this;
}
StateValues& StateValues::operator=(StateValues&& other) noexcept = default;

json& StateValues::operator[](const std::string& key) { return (*json_)[key]; }
const json& StateValues::operator[](const std::string& key) const { return json_->at(key); }

bool StateValues::operator==(const StateValues& other) const { return *json_ == *other; }

}  // namespace accelerant
