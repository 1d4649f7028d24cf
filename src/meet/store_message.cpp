#include "meet/store_message.h"

#include <bit>
#include <cstring>

namespace accelerant::meet {

static_assert(std::endian::native == std::endian::little);  // as messages are

MessageWriter::MessageWriter(uint8_t kind) : bytes_(kLengthSize, '\0') {
  bytes_.push_back(static_cast<char>(kind));
}

void MessageWriter::number(int64_t value) {
  bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void MessageWriter::length(std::size_t value) {
  const auto short_value = static_cast<uint32_t>(value);
  bytes_.append(reinterpret_cast<const char*>(&short_value), kLengthSize);
}

void MessageWriter::text(std::string_view text) {
  length(text.size());
  bytes_.append(text);
}

void MessageWriter::texts(const std::vector<std::string>& texts) {
  length(texts.size());
  for (const std::string& one : texts) text(one);
}

std::string MessageWriter::finish() {
  const auto size = static_cast<uint32_t>(bytes_.size() - kLengthSize);
  std::memcpy(bytes_.data(), &size, kLengthSize);
  return std::move(bytes_);
}

std::string_view MessageReader::take(std::size_t size) {
  if (size > rest_.size()) throw BadMessage();
  const std::string_view taken = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return taken;
}

std::size_t MessageReader::length() { return length_of(take(kLengthSize)); }

uint8_t MessageReader::kind() { return static_cast<uint8_t>(take(1).front()); }

int64_t MessageReader::number() {
  int64_t value = 0;
  std::memcpy(&value, take(sizeof value).data(), sizeof value);
  return value;
}

std::string_view MessageReader::text() { return take(length()); }

std::vector<std::string> MessageReader::texts() {
  const std::size_t count = length();
  if (count > rest_.size() / kLengthSize) throw BadMessage();
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i) texts.emplace_back(text());
  return texts;
}

void MessageReader::expect_end() const {
  if (!rest_.empty()) throw BadMessage();
}

std::size_t length_of(std::string_view bytes) {
  uint32_t size = 0;
  std::memcpy(&size, bytes.data(), kLengthSize);
  return size;
}

}  // namespace accelerant::meet
