// The element types of torch: their names here, in Python, and as storages in pickles.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace accelerant::format {

struct TorchDtype {
  std::string_view name;     // as PlainTensor::dtype has it
  std::string_view python;   // after "torch."
  std::string_view storage;  // after "torch."; empty: saved as an UntypedStorage and a dtype
  int64_t size;              // in bytes
  bool differentiable;       // may require a gradient
};

std::span<const TorchDtype> torch_dtypes();

// nullptr if there is none.
const TorchDtype* find_dtype(std::string_view name);
const TorchDtype* find_python_dtype(std::string_view python);
const TorchDtype* find_storage_type(std::string_view storage);

}  // namespace accelerant::format
