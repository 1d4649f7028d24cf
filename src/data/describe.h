// Types and tensors as messages name them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <string_view>

namespace accelerant::data {

// "uint8"
inline std::string describe(at::ScalarType type) {
  return std::string(c10::getDtypeNames(type).first);
}

// "uint8 [3, 4]"
inline std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  return c10::str(describe(tensor.scalar_type()), " [", c10::Join(", ", tensor.sizes()), "]");
}

// The text in quotes and on one line; of a long one the beginning.
inline std::string shown(std::string_view text) {
  constexpr std::size_t longest = 40;
  std::string result = "'";
  for (const char c : text.substr(0, longest)) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    result += control ? '?' : c;
  }
  return result + (text.size() > longest ? "...'" : "'");
}

}  // namespace accelerant::data
