// JSON files that contain their own checksum, so that damage is noticed:
//
//   {"checksum": "…", "format": "accelerant-checkpoint", "version": 1, …}
//
// `checksum` is the XXH3 of the rest, as nlohmann-json prints it without spaces and line breaks. A
// file that was only reformatted stays valid.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace accelerant::checkpoint {

struct SealedFormat {
  const char* format;         // as in the file
  int version;                // the only one that can be read
  const char* what;           // for messages: "manifest of a checkpoint"
  std::size_t largest_bytes;  // of the file
  const char* remedy = "";    // what else to do about a damaged file
};

// The text of an object, with format, version and checksum added. Throws json::exception for texts
// that are not UTF-8.
std::string seal(nlohmann::json object, const SealedFormat& format);

// The object of such a text, which must have exactly these fields beside the three. Throws Error,
// naming `source`, for anything that seal() would not write. The message says so if the version is
// newer. Throws std::bad_alloc if the memory does not suffice.
nlohmann::json unseal(const std::string& text, const std::string& source,
                      const SealedFormat& format, std::initializer_list<const char*> fields);

// "<source> is not a valid <what>: expected …, got …".
[[noreturn]] void refuse_sealed(const std::string& source, const SealedFormat& format,
                                const std::string& expected, const std::string& got,
                                const std::string& hint = "");

// The value must be an object with exactly these fields. `part` is its name for messages.
void check_sealed_fields(const nlohmann::json& object, std::initializer_list<const char*> fields,
                         const std::string& part, const std::string& source,
                         const SealedFormat& format);

// A value for messages, shortened.
std::string shown_json(const nlohmann::json& value);

}  // namespace accelerant::checkpoint
