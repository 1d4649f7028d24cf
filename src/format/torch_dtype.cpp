#include "format/torch_dtype.h"

#include <algorithm>
#include <array>

namespace accelerant::format {
namespace {

constexpr auto torch_dtype_table = std::to_array<TorchDtype>({
    {"F64", "float64", "DoubleStorage", 8, true},
    {"F32", "float32", "FloatStorage", 4, true},
    {"F16", "float16", "HalfStorage", 2, true},
    {"BF16", "bfloat16", "BFloat16Storage", 2, true},
    {"I64", "int64", "LongStorage", 8, false},
    {"I32", "int32", "IntStorage", 4, false},
    {"I16", "int16", "ShortStorage", 2, false},
    {"I8", "int8", "CharStorage", 1, false},
    {"U8", "uint8", "ByteStorage", 1, false},
    {"BOOL", "bool", "BoolStorage", 1, false},
    {"C128", "complex128", "ComplexDoubleStorage", 16, true},
    {"C64", "complex64", "ComplexFloatStorage", 8, true},
    {"C32", "complex32", "", 4, true},
    {"U16", "uint16", "", 2, false},
    {"U32", "uint32", "", 4, false},
    {"U64", "uint64", "", 8, false},
    {"F8_E5M2", "float8_e5m2", "", 1, true},
    {"F8_E4M3", "float8_e4m3fn", "", 1, true},
    {"F8_E5M2FNUZ", "float8_e5m2fnuz", "", 1, true},
    {"F8_E4M3FNUZ", "float8_e4m3fnuz", "", 1, true},
    {"F8_E8M0", "float8_e8m0fnu", "", 1, true},
});

const TorchDtype* find_by(std::string_view TorchDtype::*member, std::string_view text) {
  const auto found = std::ranges::find(torch_dtype_table, text, member);
  return text.empty() || found == torch_dtype_table.end() ? nullptr : &*found;
}

}  // namespace

std::span<const TorchDtype> torch_dtypes() { return torch_dtype_table; }

const TorchDtype* find_dtype(std::string_view name) { return find_by(&TorchDtype::name, name); }

const TorchDtype* find_python_dtype(std::string_view python) {
  return find_by(&TorchDtype::python, python);
}

const TorchDtype* find_storage_type(std::string_view storage) {
  return find_by(&TorchDtype::storage, storage);
}

}  // namespace accelerant::format
