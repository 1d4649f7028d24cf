// Writes named tensors to one file.
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/core/detail/byte_sink.h"
#include "accelerant/tensor/named_state.h"

namespace accelerant::checkpoint {

// The type in which a tensor is stored: `dtype`, if given, for floating-point tensors.
c10::ScalarType stored_type(const at::Tensor& tensor, std::optional<c10::ScalarType> dtype);

// Throws Error for a tensor that no weight file can hold: sparse, quantised, without data.
void require_storable(const std::string& name, const at::Tensor& tensor,
                      std::optional<c10::ScalarType> dtype);

// Both write the tensors with these names, which must be storable. `aliases` maps further names of
// tensors (see shared_tensors.h): safetensors records them in its metadata; an archive, where they
// are among the names, stores the bytes once.
void write_safetensors(const std::vector<std::string>& names, const StateDict& state,
                       const std::map<std::string, std::string>& aliases,
                       std::optional<c10::ScalarType> dtype, format::ByteSink& sink);
void write_archive(const std::vector<std::string>& names, const StateDict& state,
                   const std::map<std::string, std::string>& aliases,
                   std::optional<c10::ScalarType> dtype, format::ByteSink& sink);

}  // namespace accelerant::checkpoint
