#include "format/utf8_text.h"

#include <cstdint>

namespace accelerant::format {

bool is_python_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto lead = static_cast<uint8_t>(text[at]);
    if (lead < 0x80) {
      ++at;
      continue;
    }
    const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || length > text.size() - at) return false;
    for (std::size_t i = 1; i < length; ++i) {
      if ((static_cast<uint8_t>(text[at + i]) & 0xc0) != 0x80) return false;
    }
    // Longer than needed, or beyond the last code point.
    const auto second = static_cast<uint8_t>(text[at + 1]);
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90) ||
        (lead == 0xf4 && second > 0x8f)) {
      return false;
    }
    at += length;
  }
  return true;
}

std::optional<std::string> to_latin1(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto lead = static_cast<uint8_t>(text[i]);
    if (lead < 0x80) {
      bytes += text[i];
      continue;
    }
    if (lead > 0xc3 || i + 1 == text.size()) return std::nullopt;
    ++i;
    bytes += static_cast<char>((lead & 0x03) << 6 | (static_cast<uint8_t>(text[i]) & 0x3f));
  }
  return bytes;
}

std::string from_latin1(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char c : bytes) {
    const auto value = static_cast<uint8_t>(c);
    if (value < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xc0 | value >> 6);
      text += static_cast<char>(0x80 | (value & 0x3f));
    }
  }
  return text;
}

}  // namespace accelerant::format
