#include "accelerant/data/vocabulary.h"

#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "accelerant/core/error.h"
#include "core/utf8.h"
#include "data/describe.h"
#include "data/utf8.h"

namespace accelerant::data {

Vocabulary::Vocabulary(std::vector<char32_t> symbols, bool is_bytes)
    : symbols_(std::move(symbols)), is_bytes_(is_bytes) {
  tokens_.assign(symbols_.back() + std::size_t{1}, -1);
  for (std::size_t i = 0; i < symbols_.size(); ++i) tokens_[symbols_[i]] = static_cast<int32_t>(i);
}

Vocabulary Vocabulary::characters(std::string_view text) {
  std::vector<bool> seen(code_point_limit, false);
  for (std::size_t position = 0; position < text.size();) {
    seen[next_code_point(text, position)] = true;
  }
  std::vector<char32_t> symbols;
  for (char32_t symbol = 0; symbol < code_point_limit; ++symbol) {
    if (seen[symbol]) symbols.push_back(symbol);
  }
  if (symbols.empty()) throw Error("a vocabulary cannot be made from an empty text");
  return {std::move(symbols), false};
}

Vocabulary Vocabulary::bytes() {
  std::vector<char32_t> symbols(256);
  std::iota(symbols.begin(), symbols.end(), char32_t{0});
  return {std::move(symbols), true};
}

std::optional<int64_t> Vocabulary::token(char32_t symbol) const {
  if (symbol >= tokens_.size() || tokens_[symbol] < 0) return std::nullopt;
  return tokens_[symbol];
}

at::ScalarType Vocabulary::token_type() const {
  if (size() <= 256) return at::kByte;
  return size() <= std::numeric_limits<int16_t>::max() + 1 ? at::kShort : at::kInt;
}

at::Tensor Vocabulary::encode(std::string_view text, const EncodeOptions& options) const {
  if (is_bytes_) {
    at::Tensor tokens = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
    if (!text.empty()) std::memcpy(tokens.data_ptr(), text.data(), text.size());
    return tokens;
  }
  switch (token_type()) {
    case at::kByte:
      return encode_as<uint8_t>(text, options);
    case at::kShort:
      return encode_as<int16_t>(text, options);
    default:
      return encode_as<int32_t>(text, options);
  }
}

template <class Token>
at::Tensor Vocabulary::encode_as(std::string_view text, const EncodeOptions& options) const {
  std::optional<int64_t> replacement;
  if (options.replacement) {
    replacement = token(*options.replacement);
    if (!replacement) {
      throw Error(ErrorDetails{
          .problem = "the replacement for unknown characters is not in the vocabulary itself",
          .expected = "one of its symbols",
          .got = code_point_name(*options.replacement)});
    }
  }
  // Every character has one byte that is no continuation byte.
  const auto count = std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0U) != 0x80; });
  at::Tensor tokens =
      at::empty({count}, at::TensorOptions().dtype(c10::CppTypeToScalarType<Token>::value));
  auto* next = tokens.data_ptr<Token>();
  for (std::size_t position = 0; position < text.size();) {
    const std::size_t begin = position;
    const char32_t symbol = next_code_point(text, position);
    int64_t token = symbol < tokens_.size() ? tokens_[symbol] : -1;
    if (token < 0) {
      if (!replacement) {
        throw Error(ErrorDetails{
            .problem = c10::str("the character ", code_point_name(symbol), " ('",
                                text.substr(begin, position - begin), "') at byte ", begin,
                                " is not in the vocabulary of ", size(), " symbols"),
            .expected = {},
            .got = {},
            .hint = "make the vocabulary from all of the text, or name a replacement"});
      }
      token = *replacement;
    }
    *next++ = static_cast<Token>(token);
  }
  return tokens;
}

std::string Vocabulary::decode(const at::Tensor& tokens) const {
  if (!at::isIntegralType(tokens.scalar_type(), /*includeBool=*/false)) {
    throw Error(ErrorDetails{.problem = "tokens cannot be decoded",
                             .expected = "a tensor of integers",
                             .got = describe(tokens)});
  }
  const at::Tensor flat = tokens.to(at::kCPU, at::kLong).contiguous();
  const auto* const values = flat.data_ptr<int64_t>();
  std::string text;
  text.reserve(static_cast<std::size_t>(flat.numel()));
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const int64_t token = values[i];
    if (token < 0 || token >= size()) {
      throw Error(ErrorDetails{.problem = c10::str("token ", i, " cannot be decoded"),
                               .expected = c10::str("0 to ", size() - 1),
                               .got = std::to_string(token)});
    }
    const char32_t symbol = symbols_[static_cast<std::size_t>(token)];
    if (is_bytes_) {
      text += static_cast<char>(symbol);
    } else {
      append_utf8(text, symbol);
    }
  }
  return text;
}

}  // namespace accelerant::data
