// Reads JSON text strictly, one piece at a time, for the small grammars of this module.
//
//   JsonScanner scanner(text);
//   scanner.begin_object();
//   while (scanner.next_key(key)) { ... one value ... }
//   scanner.end();
//
// It accepts what the reference implementation of safetensors (serde_json) accepts and nothing
// else: no byte order mark, comments, trailing commas, lone surrogates or raw control characters,
// nothing after the value, no nesting deeper than 127. It exists because a header may have a
// million entries, and a general parser would take longer than reading the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace accelerant::format {

// Why a text was rejected, and at which byte.
class JsonRefusal : public std::runtime_error {
 public:
  JsonRefusal(const std::string& reason, std::size_t place)
      : std::runtime_error(reason), position(place) {}
  std::size_t position;
};

class JsonScanner {
 public:
  // Borrows the text, which must be valid UTF-8.
  explicit JsonScanner(std::string_view text);

  // Each reads one value of that kind, or throws JsonRefusal.
  void string(std::string& value);
  std::uint64_t unsigned_integer();
  bool null();  // returns false and reads nothing if the next value is not null
  void skip_value();

  // Begin an object, then call next_key until it returns false, reading one value after each key.
  // Arrays work the same way.
  void begin_object();
  bool next_key(std::string& key);
  void begin_array();
  bool next_element();

  // Only whitespace may remain.
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
  bool is_first_ = false;  // nothing has been read of the innermost object or array yet
  std::string scratch_{};
};

// Appends the text in quotes, escaping only what must be, like serde_json.
void append_json_string(std::string& json, std::string_view text);

}  // namespace accelerant::format
