// Which keys of dicts and items of sets Python takes for the same.
#pragma once

#include <optional>
#include <string>

#include "format/plain_value.h"

namespace accelerant::format {

// A text that is equal for two values if they are the same key in Python: 1, 1.0 and True are. Nothing if
// the value cannot be a key: lists, dicts, sets, bytearrays, tensors, and nan, which equals nothing.
std::optional<std::string> dict_key(const PlainValue& value);

}  // namespace accelerant::format
