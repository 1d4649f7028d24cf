// Runs one operator under AutocastGuard and returns the types and values of its outputs.
//
// Input: {"device": "cpu", "dtype": "float16", "op": "mm", "args": [...], "kwargs": {...}}, where a
// tensor is {"tensor": {"shape": [...], "dtype": "float32", "values": [...]}}.
// Output: {"outputs": [{"dtype": "float16", "values": [...]}, ...]}.
#include <accelerant/amp/autocast.h>
#include <torch/csrc/jit/runtime/operator.h>
#include <torch/script.h>

#include <optional>

#include "refusal.h"
#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using c10::IValue;
using nlohmann::json;

at::Tensor tensor_argument(const json& description, at::Device device) {
  const json& tensor = description.at("tensor");
  const auto options =
      at::TensorOptions().device(device).dtype(type_from(tensor.at("dtype").get<std::string>()));
  return tensor_from(tensor.at("values"), options)
      .reshape(tensor.at("shape").get<std::vector<int64_t>>());
}

// The argument in the type that the schema needs, or nothing if it does not fit.
std::optional<IValue> convert(const json& value, const c10::TypePtr& type, at::Device device) {
  switch (type->kind()) {
    case c10::TypeKind::OptionalType:
      if (value.is_null()) return IValue();
      return convert(value, type->expectRef<c10::OptionalType>().getElementType(), device);
    case c10::TypeKind::TensorType:
      if (value.is_object() && value.contains("tensor")) return tensor_argument(value, device);
      return std::nullopt;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (value.is_number_integer()) return value.get<int64_t>();
      return std::nullopt;
    case c10::TypeKind::FloatType:
      if (value.is_number()) return value.get<double>();
      return std::nullopt;
    case c10::TypeKind::NumberType:
      if (value.is_number_integer()) return at::Scalar(value.get<int64_t>());
      if (value.is_number()) return at::Scalar(value.get<double>());
      return std::nullopt;
    case c10::TypeKind::BoolType:
      if (value.is_boolean()) return value.get<bool>();
      return std::nullopt;
    case c10::TypeKind::StringType:
      if (value.is_string()) return value.get<std::string>();
      return std::nullopt;
    case c10::TypeKind::ListType: {
      const auto element_type = type->expectRef<c10::ListType>().getElementType();
      c10::impl::GenericList list(element_type);
      const json elements = value.is_array() ? value : json::array({value});
      for (const json& element : elements) {
        auto converted = convert(element, element_type, device);
        if (!converted) return std::nullopt;
        list.push_back(std::move(*converted));
      }
      return list;
    }
    default:
      return std::nullopt;
  }
}

std::optional<torch::jit::Stack> arguments_for(const c10::FunctionSchema& schema,
                                               const json& document, at::Device device) {
  const json args = document.value("args", json::array());
  const json kwargs = document.value("kwargs", json::object());
  if (args.size() > schema.arguments().size()) return std::nullopt;
  for (const auto& [name, value] : kwargs.items()) {
    if (!schema.argumentIndexWithName(name)) return std::nullopt;
  }
  torch::jit::Stack stack;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (i < args.size() && argument.kwarg_only()) return std::nullopt;
    const json* value = i < args.size()                    ? &args[i]
                        : kwargs.contains(argument.name()) ? &kwargs[argument.name()]
                                                           : nullptr;
    std::optional<IValue> converted =
        value != nullptr ? convert(*value, argument.type(), device) : argument.default_value();
    if (!converted) return std::nullopt;
    stack.push_back(std::move(*converted));
  }
  return stack;
}

void append_outputs(const IValue& value, json& outputs) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    const bool real = tensor.defined() && !tensor.is_complex();
    outputs.push_back({{"dtype", tensor.defined() ? type_to(tensor.scalar_type()) : "none"},
                       {"values", real ? tensor_to(tensor) : json()}});
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) append_outputs(tensor, outputs);
  } else if (value.isTuple()) {
    for (const IValue& element : value.toTupleRef().elements()) append_outputs(element, outputs);
  }
}

}  // namespace

json replay_autocast(const json& document) {
  const at::Device device(document.at("device").get<std::string>());
  const at::ScalarType dtype = type_from(document.at("dtype").get<std::string>());
  const auto name = c10::Symbol::fromQualString("aten::" + document.at("op").get<std::string>());
  for (const auto& candidate : torch::jit::getAllOperatorsFor(name)) {
    auto stack = arguments_for(candidate->schema(), document, device);
    if (!stack) continue;
    return result_or_error([&]() -> json {
      const accelerant::AutocastGuard guard({.device_type = device.type(), .dtype = dtype});
      candidate->getOperation()(*stack);
      json outputs = json::array();
      for (const IValue& value : *stack) append_outputs(value, outputs);
      return {{"outputs", outputs}, {"schema", c10::str(candidate->schema().operator_name())}};
    });
  }
  throw BadDocument(c10::str("no overload of ", name.toQualString(), " takes these arguments"));
}

}  // namespace replay
