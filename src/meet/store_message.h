// Requests to the store and its answers, as bytes.
//
// A message is its length (4 bytes, little-endian) and then that many bytes: of a request the
// operation and its arguments, of an answer the outcome and what was asked for. Numbers have 8
// bytes, texts and lists their length (4 bytes) in front.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace accelerant::meet {

enum class Operation : uint8_t {
  set = 1,      // key, value
  append,       // key, value
  multi_set,    // keys, values
  get,          // timeout, keys → values
  wait,         // timeout, keys
  check,        // keys → 1 if all exist, else 0
  add,          // key, number → sum
  compare_set,  // key, expected, desired → value
  remove,       // key → 1 if it existed, else 0
  count_keys,   // → number
};

enum class Outcome : uint8_t {
  done = 0,
  timeout,  // of get and wait
  failed,   // a text says why
};

// Longer ones end the connection. A value may be as long as a request.
inline constexpr std::size_t kLongestRequest = std::size_t{64} << 20;
inline constexpr std::size_t kLongestAnswer = std::size_t{256} << 20;
inline constexpr std::size_t kLengthSize = 4;

// What the other end has sent cannot be read.
struct BadMessage : std::runtime_error {
  BadMessage() : std::runtime_error("a message that cannot be read") {}
};

class MessageWriter {
 public:
  explicit MessageWriter(Operation operation) : MessageWriter(static_cast<uint8_t>(operation)) {}
  explicit MessageWriter(Outcome outcome) : MessageWriter(static_cast<uint8_t>(outcome)) {}

  void number(int64_t value);
  void text(std::string_view text);
  void texts(const std::vector<std::string>& texts);

  // With its length in front.
  std::string finish();

 private:
  explicit MessageWriter(uint8_t kind);
  void length(std::size_t value);

  std::string bytes_;
};

// Throws BadMessage if there is less, or in the end more, than what is read. What it allocates
// depends on how long the message is, not on the lengths that it contains.
class MessageReader {
 public:
  // The message without its length.
  explicit MessageReader(std::string_view message) : rest_(message) {}

  uint8_t kind();
  int64_t number();
  std::string_view text();
  std::vector<std::string> texts();
  void expect_end() const;

 private:
  std::string_view take(std::size_t size);
  std::size_t length();

  std::string_view rest_;
};

// The length that a message begins with; at least kLengthSize bytes.
std::size_t length_of(std::string_view bytes);

}  // namespace accelerant::meet
