// Tensors of torch as a safetensors file.
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <optional>
#include <string>

#include "accelerant/format/byte_sink.h"
#include "accelerant/tensor/state_dict.h"

namespace accelerant::checkpoint {

// The type that a tensor is stored in, if floating-point ones are to be stored in `dtype`.
c10::ScalarType stored_type(const at::Tensor& tensor, std::optional<c10::ScalarType> dtype);

// An Error for what no file can hold: sparse and quantised tensors, those without data.
void require_storable(const std::string& name, const at::Tensor& tensor,
                      std::optional<c10::ScalarType> dtype = std::nullopt);

// `aliases` are further names (key) of tensors (value), which are noted in the file's metadata; those of other tensors
// are left out.
void write_safetensors(const StateDict& tensors, const std::map<std::string, std::string>& aliases,
                       std::optional<c10::ScalarType> dtype, format::ByteSink& sink);

}  // namespace accelerant::checkpoint
