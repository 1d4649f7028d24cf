#include "checkpoint/tensor_writer.h"

#include <c10/util/StringUtil.h>

#include <unordered_map>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/format/safetensors.h"
#include "checkpoint/python_values.h"
#include "checkpoint/tensor_copy.h"
#include "format/torch_archive.h"
#include "tensor/tensor_dtype.h"

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
    got = "a tensor with the layout " + c10::str(tensor.layout());
  } else if (!format_dtype(stored_type(tensor, dtype))) {
    got = std::string("a tensor of type ") + c10::toString(stored_type(tensor, dtype));
  } else {
    return;
  }
  throw Error(ErrorDetails{.problem = "The tensor '" + name + "' cannot be saved",
                           .expected = "a dense tensor of a type that safetensors supports",
                           .got = got});
}

void write_safetensors(const std::vector<std::string>& names, const StateDict& state,
                       const std::map<std::string, std::string>& aliases,
                       std::optional<c10::ScalarType> dtype, format::ByteSink& sink) {
  // Python's libraries accept the file only with "pt".
  format::Metadata metadata = {{"format", "pt"}};
  std::vector<format::TensorToWrite> tensors;
  for (const std::string& name : names) {
    const at::Tensor& tensor = state[name];
    const c10::ScalarType type = stored_type(tensor, dtype);
    tensors.push_back({.name = name,
                       .dtype = *format_dtype(type),
                       .shape = tensor.sizes().vec(),
                       .produce = [&tensor, type](format::ByteSink& target) {
                         for_each_piece(tensor.to(type), [&](auto bytes) { target.write(bytes); });
                       }});
    for (const auto& [alias, kept] : aliases) {
      if (kept == name) metadata.emplace(alias, kept);
    }
  }
  format::SafetensorsWriter(std::move(tensors), metadata).write(sink);
}

void write_archive(const std::vector<std::string>& names, const StateDict& state,
                   const std::map<std::string, std::string>& aliases,
                   std::optional<c10::ScalarType> dtype, format::ByteSink& sink) {
  std::unordered_map<std::string, format::PlainTensor> written;  // by the kept name
  format::PlainDict dict;
  dict.kind = format::PlainDictKind::ordered;
  for (const std::string& name : names) {
    const auto alias = aliases.find(name);
    const std::string& kept = alias == aliases.end() ? name : alias->second;
    auto place = written.find(kept);
    if (place == written.end()) {
      const at::Tensor& tensor = state[name];
      place = written
                  .emplace(kept, plain_tensor(tensor, "The tensor '" + name + "'",
                                              stored_type(tensor, dtype)))
                  .first;
    }
    dict.set(name, place->second);
  }
  format::write_torch_archive(std::move(dict), sink);
}

}  // namespace accelerant::checkpoint
