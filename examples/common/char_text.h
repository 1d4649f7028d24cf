// A text file as a tensor of numbers, one for each character.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace examples {

// Every character that occurs is a symbol; symbols are numbered in ascending order. Characters are
// bytes, so one beyond ASCII counts as several.
class CharText {
 public:
  // Throws std::runtime_error when the file cannot be read.
  explicit CharText(const std::string& path);

  int64_t symbols() const { return static_cast<int64_t>(symbols_.size()); }

  // The whole text, int64 [characters].
  const at::Tensor& tokens() const { return tokens_; }

  // The number of a character, -1 if it does not occur.
  int64_t token(char character) const;

  // The text for numbers of any shape, read row by row, on any device.
  std::string decode(const at::Tensor& tokens) const;

 private:
  std::string symbols_;
  at::Tensor tokens_;
};

}  // namespace examples
