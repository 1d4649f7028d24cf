// The symbols a text is made of, numbered: characters or bytes to tokens and back.
//
//   auto vocabulary = Vocabulary::characters("the quick brown fox");
//   at::Tensor tokens = vocabulary.encode("box");
//   std::string text = vocabulary.decode(tokens);
//
// A value type without ties to the text it was made from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerant::data {

struct EncodeOptions {
  // The symbol that takes the place of a character the vocabulary does not have, and itself is in
  // the vocabulary, for example U'?'. Default: such a character is an Error.
  std::optional<char32_t> replacement = {};
};

class Vocabulary {
 public:
  // The distinct characters (Unicode code points) of a text in UTF-8, sorted by code point. The text
  // is taken as it is: no newline, accent or byte order mark is changed. Throws Error with the
  // offset of the first byte that is no valid UTF-8, and for an empty text.
  static Vocabulary characters(std::string_view text);

  // The 256 bytes: takes any text, tokens are the bytes themselves.
  static Vocabulary bytes();

  // The number of symbols. Tokens are 0 to size() - 1.
  int64_t size() const { return static_cast<int64_t>(symbols_.size()); }

  bool is_bytes() const { return is_bytes_; }

  // The code point (or byte) of every token, ascending.
  const std::vector<char32_t>& symbols() const { return symbols_; }

  // The token of a symbol, nothing if there is none.
  std::optional<int64_t> token(char32_t symbol) const;

  // The narrowest type of tensor that holds every token: uint8, int16 or int32.
  at::ScalarType token_type() const;

  // The tokens of a text, [n] of token_type() on the CPU. Throws Error with the byte offset for
  // invalid UTF-8 and for an unknown character, unless options say otherwise.
  at::Tensor encode(std::string_view text, const EncodeOptions& options = {}) const;

  // The text of integer tokens of any shape, row by row, on any device. Throws Error for a token
  // that is out of range.
  std::string decode(const at::Tensor& tokens) const;

  friend bool operator==(const Vocabulary& a, const Vocabulary& b) {
    return a.is_bytes_ == b.is_bytes_ && a.symbols_ == b.symbols_;
  }

 private:
  Vocabulary(std::vector<char32_t> symbols, bool is_bytes);

  template <class Token>
  at::Tensor encode_as(std::string_view text, const EncodeOptions& options) const;

  std::vector<char32_t> symbols_;
  std::vector<int32_t> tokens_;  // by symbol; -1: not in the vocabulary
  bool is_bytes_ = false;
};

}  // namespace accelerant::data
