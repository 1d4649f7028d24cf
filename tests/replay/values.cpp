#include "values.h"

#include <cmath>
#include <limits>

namespace replay {
namespace {

const std::pair<const char*, at::ScalarType> kTypes[] = {
    {"float16", at::kHalf},  {"bfloat16", at::kBFloat16},
    {"float32", at::kFloat}, {"float64", at::kDouble},
    {"int64", at::kLong},    {"int32", at::kInt},
    {"bool", at::kBool},     {"complex64", at::kComplexFloat},
    {"uint8", at::kByte},    {"int8", at::kChar},
    {"int16", at::kShort},
};

}  // namespace

double number_from(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "inf") return std::numeric_limits<double>::infinity();
  if (value == "-inf") return -std::numeric_limits<double>::infinity();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  throw BadDocument("not a number: " + value.dump());
}

nlohmann::json number_to(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

at::ScalarType type_from(const std::string& name) {
  for (const auto& [known, type] : kTypes) {
    if (name == known) return type;
  }
  throw BadDocument("unknown dtype: " + name);
}

std::string type_to(at::ScalarType type) {
  for (const auto& [name, known] : kTypes) {
    if (type == known) return name;
  }
  return c10::toString(type);
}

at::Tensor tensor_from(const nlohmann::json& values, at::TensorOptions options) {
  std::vector<double> numbers;
  for (const auto& value : values) numbers.push_back(number_from(value));
  return torch::tensor(numbers, at::kDouble).to(options.device(), options.dtype().toScalarType());
}

nlohmann::json tensor_to(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const at::Tensor flat = tensor.detach().to(at::kCPU, at::kDouble).contiguous().view({-1});
  nlohmann::json values = nlohmann::json::array();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    values.push_back(number_to(flat.const_data_ptr<double>()[i]));
  }
  return values;
}

}  // namespace replay
