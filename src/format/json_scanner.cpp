#include "format/json_scanner.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

#include "core/utf8.h"

namespace accelerant::format {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Whether a number that no double can hold is too large; if not, it is too close to zero.
bool is_too_large(std::string_view digits) {
  const std::size_t exponent_mark = std::min(digits.find_first_of("eE"), digits.size());
  const std::string_view mantissa = digits.substr(0, exponent_mark);
  // Approximate position of the first significant digit, relative to the decimal point.
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  const std::size_t leading = mantissa.find_first_of("123456789");
  if (leading == std::string_view::npos) return false;
  const auto place = static_cast<std::int64_t>(point) - static_cast<std::int64_t>(leading);
  if (exponent_mark == digits.size()) return place > 0;
  std::string_view text = digits.substr(exponent_mark + 1);
  if (text.front() == '+') text.remove_prefix(1);
  std::int64_t exponent = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), exponent);
  if (result.ec != std::errc()) return text.front() != '-';
  return exponent > -place;
}

}  // namespace

JsonScanner::JsonScanner(std::string_view text) : text_(text) {
  if (const auto invalid = find_invalid_utf8(text)) {
    position_ = *invalid;
    fail("invalid UTF-8");
  }
}

void JsonScanner::fail(const std::string& reason) const { throw JsonRefusal(reason, position_); }

void JsonScanner::skip_whitespace() {
  while (!at_end()) {
    const char c = text_[position_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++position_;
  }
}

// The next character that is not whitespace.
char JsonScanner::peek() {
  skip_whitespace();
  if (at_end()) fail("the text ends early");
  return text_[position_];
}

void JsonScanner::expect(char wanted, const char* what) {
  if (peek() != wanted) fail(std::string("expected ") + what);
  ++position_;
}

void JsonScanner::begin(char bracket, const char* what) {
  expect(bracket, what);
  if (++depth_ > deepest_) fail("nested too deeply");
  is_first_ = true;
}

// Moves to the next element; false at the closing bracket.
bool JsonScanner::next(char bracket) {
  const char c = peek();
  if (c == bracket) {
    ++position_;
    --depth_;
    is_first_ = false;
    return false;
  }
  if (is_first_) {
    is_first_ = false;
    return true;
  }
  if (c != ',') fail(std::string("expected ',' or '") + bracket + "'");
  ++position_;
  return true;
}

void JsonScanner::begin_object() { begin('{', "an object"); }

bool JsonScanner::next_key(std::string& key) {
  if (!next('}')) return false;
  string(key);
  expect(':', "':'");
  return true;
}

void JsonScanner::begin_array() { begin('[', "an array"); }

bool JsonScanner::next_element() { return next(']'); }

void JsonScanner::string(std::string& value) {
  expect('"', "a string");
  value.clear();
  for (;;) {
    const std::size_t begin = position_;
    while (!at_end() && text_[position_] != '"' && text_[position_] != '\\' &&
           static_cast<unsigned char>(text_[position_]) >= 0x20) {
      ++position_;
    }
    value.append(text_, begin, position_ - begin);
    if (at_end()) fail("the text ends inside a string");
    if (text_[position_] == '"') break;
    if (text_[position_] != '\\') fail("control character inside a string");
    append_utf8(value, escaped_character());
  }
  ++position_;
}

char32_t JsonScanner::escaped_character() {
  ++position_;
  if (at_end()) fail("the text ends inside a string");
  switch (text_[position_++]) {
    case '"':
      return U'"';
    case '\\':
      return U'\\';
    case '/':
      return U'/';
    case 'b':
      return U'\b';
    case 'f':
      return U'\f';
    case 'n':
      return U'\n';
    case 'r':
      return U'\r';
    case 't':
      return U'\t';
    case 'u':
      break;
    default:
      --position_;
      fail("unknown escape");
  }
  const char32_t first = four_hex_digits();
  if (first < 0xD800 || first >= 0xE000) return first;
  if (first >= 0xDC00 || text_.substr(position_, 2) != "\\u") fail("half of a surrogate pair");
  position_ += 2;
  const char32_t second = four_hex_digits();
  if (second < 0xDC00 || second >= 0xE000) fail("half of a surrogate pair");
  return 0x10000 + ((first - 0xD800) << 10 | (second - 0xDC00));
}

char32_t JsonScanner::four_hex_digits() {
  const std::string_view digits = text_.substr(position_, 4);
  std::uint32_t value = 0;
  const char* const end = digits.data() + digits.size();
  const auto result = std::from_chars(digits.data(), end, value, 16);
  if (digits.size() < 4 || result.ptr != end) {
    fail("expected four hexadecimal digits");
  }
  position_ += 4;
  return value;
}

std::uint64_t JsonScanner::unsigned_integer() {
  if (!is_digit(peek())) fail("expected a whole number of at least 0");
  const std::size_t begin = position_;
  number();
  std::uint64_t value = 0;
  const char* const end = text_.data() + position_;
  const auto result = std::from_chars(text_.data() + begin, end, value);
  if (result.ec != std::errc() || result.ptr != end) {
    position_ = begin;
    fail("expected a whole number from 0 to 18446744073709551615");
  }
  return value;
}

// Moves past a number of any form.
void JsonScanner::number() {
  const std::size_t begin = position_;
  const auto digits = [&] {
    const std::size_t first = position_;
    while (!at_end() && is_digit(text_[position_])) ++position_;
    if (position_ == first) fail("expected a digit");
  };
  const auto take = [&](char wanted) {
    const bool found = !at_end() && text_[position_] == wanted;
    if (found) ++position_;
    return found;
  };
  take('-');
  if (take('0')) {
    if (!at_end() && is_digit(text_[position_])) fail("a number begins with 0");
  } else {
    digits();
  }
  bool is_whole = true;
  if (take('.')) {
    digits();
    is_whole = false;
  }
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    digits();
    is_whole = false;
  }
  // Integers with up to this many digits always fit a double.
  const std::string_view text = text_.substr(begin, position_ - begin);
  if (is_whole && text.size() <= std::numeric_limits<double>::max_exponent10) return;
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec == std::errc::result_out_of_range && is_too_large(text)) {
    fail("a number is too large");
  }
}

void JsonScanner::word(std::string_view wanted) {
  if (text_.substr(position_, wanted.size()) != wanted) fail("expected a value");
  position_ += wanted.size();
}

bool JsonScanner::null() {
  if (peek() != 'n') return false;
  word("null");
  return true;
}

// Calls itself at most deepest_ times.
void JsonScanner::skip_value() {
  switch (peek()) {
    case '{': {
      begin_object();
      std::string key;
      while (next_key(key)) skip_value();
      return;
    }
    case '[':
      begin_array();
      while (next_element()) skip_value();
      return;
    case '"':
      return string(scratch_);
    case 't':
      return word("true");
    case 'f':
      return word("false");
    case 'n':
      return word("null");
    default:
      if (text_[position_] != '-' && !is_digit(text_[position_])) fail("expected a value");
      return number();
  }
}

void JsonScanner::end() {
  skip_whitespace();
  if (!at_end()) fail("expected the end of the text");
}

void append_json_string(std::string& json, std::string_view text) {
  constexpr std::string_view hex = "0123456789abcdef";
  json += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      json += {'\\', c};
    } else if (byte >= 0x20) {
      json += c;
    } else if (const char* const known = "btn\0fr"; byte >= 8 && byte <= 13 && byte != 11) {
      json += {'\\', known[byte - 8]};
    } else {
      json += "\\u00";
      json += {hex[byte >> 4], hex[byte & 15]};
    }
  }
  json += '"';
}

}  // namespace accelerant::format
