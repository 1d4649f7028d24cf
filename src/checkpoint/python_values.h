// Converts between the plain data of Python's files and what the library works with: tensors, JSON,
// and trees of both.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "accelerant/tensor/named_state.h"
#include "format/plain_value.h"

namespace accelerant::checkpoint {

// Views that repeat elements, see format::refuse_expanded().
enum class Expanded { refuse, allow };

// The tensor in the file's own memory, which it keeps alive; do not write to it. Throws Error,
// beginning with `where`, for a type that torch does not have, for a damaged file and, unless
// allowed, for an expanded view, whose copies may need any amount of memory.
at::Tensor view_of(const format::PlainTensor& tensor, const std::string& where,
                   Expanded expanded = Expanded::refuse);

// Throws Error, beginning with `where`, unless a file of torch.save that weights_only opens can
// hold the tensor.
void require_plain(const at::Tensor& tensor, const std::string& where);

// The tensor's elements in row-major order on the CPU, as `dtype` if it is given. The tensor is read
// when the result is written, one at a time, so that not all of them need copies at once. Throws
// Error as above.
format::PlainTensor plain_tensor(const at::Tensor& tensor, const std::string& where,
                                 std::optional<c10::ScalarType> dtype = std::nullopt);

// Values as JSON. Integer keys become strings, tuples and sets become lists, and a tensor of one
// element becomes its number; numbers that JSON lacks become "inf", "-inf" and "nan". Throws Error
// for anything else.
nlohmann::json json_of(const format::PlainValue& value, const std::string& where);

// The reverse, as far as possible: the strings for non-finite numbers become numbers.
format::PlainValue plain_value(const nlohmann::json& value);

// Values as JSON, and tensors by their path, such as "state.0.exp_avg"; the values omit them from
// dicts and have null for them in lists. This is the form of optim::from_python_state. The tensors
// are views, as above.
NamedState tree_of(const format::PlainValue& value, const std::string& where);

}  // namespace accelerant::checkpoint
