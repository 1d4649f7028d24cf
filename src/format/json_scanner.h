// Reads JSON text strictly, one piece at a time, for the small grammars of this room.
//
//   JsonScanner scanner(text);
//   scanner.begin_object();
//   while (scanner.next_key(key)) { ... one value ... }
//   scanner.end();
//
// It accepts what the reference implementation of safetensors (serde_json) accepts, no more: no
// byte order mark, no comments, no trailing commas, no lone surrogates, no raw control characters,
// nothing after the value, no nesting deeper than 127. It is a scanner of its own because a header
// may have a million entries, and a general parser takes longer than the reading of the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace accelerant::format {

// Why a text was refused, and at which byte.
class JsonRefusal : public std::runtime_error {
 public:
  JsonRefusal(const std::string& reason, std::size_t place)
      : std::runtime_error(reason), position(place) {}
  std::size_t position;
};

class JsonScanner {
 public:
  // Borrows the text. All of it must be UTF-8.
  explicit JsonScanner(std::string_view text);

  // Each reads one value of that kind, or throws JsonRefusal.
  void string(std::string& value);
  std::uint64_t unsigned_integer();
  bool null();  // false, and nothing read, if the next value is something else
  void skip_value();

  // An object is begun, and then next_key is called until it returns false; each key is followed by
  // reading one value. Likewise arrays.
  void begin_object();
  bool next_key(std::string& key);
  void begin_array();
  bool next_element();

  // Only whitespace may be left.
  void end();

  // The bytes read so far.
  std::size_t position() const { return position_; }
  void skip_whitespace();

  [[noreturn]] void fail(const std::string& reason) const;

 private:
  static constexpr int deepest_ = 127;

  bool at_end() const { return position_ == text_.size(); }
  char peek();
  void expect(char wanted, const char* what);
  void begin(char bracket, const char* what);
  bool next(char bracket);
  char32_t escaped_character();
  char32_t four_hex_digits();
  void number();
  void word(std::string_view wanted);

  std::string_view text_;
  std::size_t position_ = 0;
  int depth_ = 0;
  bool is_first_ = false;  // nothing was read yet of the innermost object or array
  std::string scratch_{};
};

// The text in quotes, escaped as serde_json does it: only what must be.
void append_json_string(std::string& json, std::string_view text);

}  // namespace accelerant::format
