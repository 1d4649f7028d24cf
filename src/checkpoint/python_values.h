// Between the plain data of Python's files and what the library works with: tensors, JSON, and
// trees of both.
#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json.hpp>
#include <string>

#include "accelerant/tensor/named_state.h"
#include "format/plain_value.h"

namespace accelerant::checkpoint {

// The tensor in the file's own memory, which it keeps alive; it must not be written to. `where`
// begins the Error for a type that torch does not have, and for a damaged file.
at::Tensor view_of(const format::PlainTensor& tensor, const std::string& where);

// An Error that begins with `where` if no file of torch.save that weights_only opens can hold the
// tensor.
void require_plain(const at::Tensor& tensor, const std::string& where);

// The tensor's elements in row-major order, on the CPU, as it is now if it has to be moved for
// that; otherwise it is the tensor's own memory. An Error as above.
format::PlainTensor plain_tensor(const at::Tensor& tensor, const std::string& where);

// Values as JSON. Whole numbers as keys become texts, tuples and sets lists, a tensor of one
// element its number; numbers that JSON lacks are "inf", "-inf" and "nan". An Error for what has no
// such form.
nlohmann::json json_of(const format::PlainValue& value, const std::string& where);

// The reverse, as far as there is one: the texts for non-finite numbers become numbers.
format::PlainValue plain_value(const nlohmann::json& value);

// Values as JSON, and tensors by their path, "state.0.exp_avg", where the values have nothing in a
// dict and null in a list: the form of optim::from_python_state. The tensors are views, as above.
NamedState tree_of(const format::PlainValue& value, const std::string& where);

}  // namespace accelerant::checkpoint
