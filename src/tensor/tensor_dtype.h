// Element types of files and of torch.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

#include "accelerant/format/safetensors.h"

namespace accelerant {

// Empty if safetensors has no such type (complex128, quantised types).
std::optional<format::DType> format_dtype(c10::ScalarType type);

// Empty if torch has no such type (F6_E2M3, F6_E3M2), or only one for pairs of elements (F4).
std::optional<c10::ScalarType> torch_dtype(format::DType type);

// Types by their names in format::PlainTensor: those above, and two that safetensors lacks, C32 and
// C128.
std::optional<c10::ScalarType> archive_type(const std::string& name);
std::optional<std::string> archive_type_name(c10::ScalarType type);

}  // namespace accelerant
