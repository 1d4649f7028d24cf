#include "checkpoint/safetensors_output.h"

#include <c10/util/StringUtil.h>

#include <utility>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerant/format/safetensors_writer.h"
#include "checkpoint/tensor_copy.h"
#include "checkpoint/tensor_dtype.h"

namespace accelerant::checkpoint {

c10::ScalarType stored_type(const at::Tensor& tensor, std::optional<c10::ScalarType> dtype) {
  return dtype && tensor.is_floating_point() ? *dtype : tensor.scalar_type();
}

void require_storable(const std::string& name, const at::Tensor& tensor,
                      std::optional<c10::ScalarType> dtype) {
  std::string got;
  if (!tensor.defined() || tensor.is_meta()) {
    got = "a tensor without data";
  } else if (tensor.layout() != at::kStrided) {
    got = "a tensor whose layout is " + c10::str(tensor.layout());
  } else if (!format_dtype(stored_type(tensor, dtype))) {
    got = std::string("a tensor of the type ") + c10::toString(stored_type(tensor, dtype));
  } else {
    return;
  }
  throw Error(ErrorDetails{.problem = "The tensor '" + name + "' cannot be saved",
                           .expected = "a dense tensor of a type that safetensors has",
                           .got = got});
}

void write_safetensors(const StateDict& tensors, const std::map<std::string, std::string>& aliases,
                       std::optional<c10::ScalarType> dtype, format::ByteSink& sink) {
  // "pt" is what makes Python's libraries accept the file.
  format::Metadata metadata = {{"format", "pt"}};
  std::vector<format::TensorToWrite> list;
  for (const auto& item : tensors) {
    const at::Tensor& tensor = item.value();
    const c10::ScalarType type = stored_type(tensor, dtype);
    list.push_back({.name = item.key(),
                    .dtype = *format_dtype(type),
                    .shape = tensor.sizes().vec(),
                    .produce = [&tensor, type](format::ByteSink& target) {
                      for_each_piece(tensor.to(type), [&](auto bytes) { target.write(bytes); });
                    }});
  }
  for (const auto& [alias, kept] : aliases) {
    if (tensors.contains(kept)) metadata.emplace(alias, kept);
  }
  format::SafetensorsWriter(std::move(list), metadata).write(sink);
}

}  // namespace accelerant::checkpoint
