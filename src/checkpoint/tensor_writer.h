// Writes tensors by name into one file.
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/core/detail/byte_sink.h"
#include "accelerant/tensor/named_state.h"

namespace accelerant::checkpoint {

// The type a tensor is stored in: `dtype`, if it is given, for floating-point tensors.
c10::ScalarType stored_type(const at::Tensor& tensor, std::optional<c10::ScalarType> dtype);

// An Error for a tensor that no file of weights can hold: sparse, quantised, without data.
void require_storable(const std::string& name, const at::Tensor& tensor,
                      std::optional<c10::ScalarType> dtype);

// Both write the tensors of these names, which have been found to be storable. `aliases` are names
// of tensors that have another name too (shared_tensors.h): safetensors notes those of its tensors
// in its metadata; an archive, where they are among the names, stores their bytes once.
void write_safetensors(const std::vector<std::string>& names, const StateDict& state,
                       const std::map<std::string, std::string>& aliases,
                       std::optional<c10::ScalarType> dtype, format::ByteSink& sink);
void write_archive(const std::vector<std::string>& names, const StateDict& state,
                   const std::map<std::string, std::string>& aliases,
                   std::optional<c10::ScalarType> dtype, format::ByteSink& sink);

}  // namespace accelerant::checkpoint
