// Tensors and numbers as the replay protocol writes them: JSON numbers, and the strings "inf",
// "-inf" and "nan".
#pragma once

#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace replay {

// A document that does not follow the protocol.
struct BadDocument : std::runtime_error {
  using std::runtime_error::runtime_error;
};

double number_from(const nlohmann::json& value);
nlohmann::json number_to(double value);

at::ScalarType type_from(const std::string& name);
std::string type_to(at::ScalarType type);

// A one-dimensional tensor from a list of numbers.
at::Tensor tensor_from(const nlohmann::json& values, at::TensorOptions options);

// A flat list of the elements; null for an undefined tensor.
nlohmann::json tensor_to(const at::Tensor& tensor);

}  // namespace replay
