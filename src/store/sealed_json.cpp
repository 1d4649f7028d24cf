#include "store/sealed_json.h"

#include <new>
#include <vector>

#include "accelerant/core/error.h"
#include "store/checksum.h"

namespace accelerant::checkpoint {
namespace {

using nlohmann::json;

constexpr int kDeepestNesting = 64;  // writing JSON recurses
constexpr std::size_t kLongestQuote = 80;

// Throws std::bad_alloc before the parser can run out of memory: its destructors need some, too, and
// without it they end the process.
void require_memory_to_parse(const std::string& text) {
  constexpr std::size_t kPerByte = 8;  // a list of checksums takes 7
  void* volatile const probe = ::operator new(kPerByte* text.size());
  ::operator delete(probe);
}

json parse_sealed(const std::string& text, const std::string& source, const SealedFormat& format) {
  const auto watch_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > kDeepestNesting) {
      refuse_sealed(source, format, "at most " + std::to_string(kDeepestNesting) + " levels",
                    "more");
    }
    return true;
  };
  require_memory_to_parse(text);
  try {
    return json::parse(text, watch_depth);
  } catch (const json::exception& error) {
    refuse_sealed(source, format, "JSON", error.what());
  }
}

void check_version(const json& whole, const std::string& source, const SealedFormat& format) {
  if (!whole.is_object()) refuse_sealed(source, format, "an object", shown_json(whole));
  const json name = whole.value("format", json());
  if (name != format.format) {
    refuse_sealed(source, format, "the format '" + std::string(format.format) + "'",
                  shown_json(name));
  }
  const json version = whole.value("version", json());
  if (version == format.version) return;
  const bool is_newer = version.is_number_integer() && version > format.version;
  refuse_sealed(
      source, format, "version " + std::to_string(format.version) + " of the format",
      "version " + shown_json(version),
      is_newer ? "a newer version of Accelerant wrote it; load it with that version" : "");
}

void check_seal(json whole, const std::string& source, const SealedFormat& format) {
  const json noted = whole["checksum"];
  whole.erase("checksum");
  const std::string actual = to_hex(checksum_of(whole.dump()));
  if (noted != actual) {
    refuse_sealed(source, format, "the checksum " + shown_json(noted), actual,
                  "the file is damaged");
  }
}

void check_names(const json& object, const std::vector<const char*>& names, const std::string& part,
                 const std::string& source, const SealedFormat& format) {
  if (!object.is_object()) {
    refuse_sealed(source, format, part + " to be an object", shown_json(object));
  }
  for (const char* name : names) {
    if (object.contains(name)) continue;
    refuse_sealed(source, format, part + " to have a field " + name, shown_json(object));
  }
  if (object.size() != names.size()) {
    refuse_sealed(source, format, "no other fields in " + part, shown_json(object));
  }
}

}  // namespace

std::string shown_json(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kLongestQuote) text = text.substr(0, kLongestQuote) + "…";
  return text;
}

void refuse_sealed(const std::string& source, const SealedFormat& format,
                   const std::string& expected, const std::string& got, const std::string& hint) {
  throw Error(ErrorDetails{.problem = source + " is not a valid " + format.what,
                           .expected = expected,
                           .got = got,
                           .hint = hint.empty() || *format.remedy == '\0'
                                       ? hint + format.remedy
                                       : hint + "; " + format.remedy});
}

void check_sealed_fields(const json& object, std::initializer_list<const char*> fields,
                         const std::string& part, const std::string& source,
                         const SealedFormat& format) {
  check_names(object, fields, part, source, format);
}

std::string seal(json object, const SealedFormat& format) {
  object["format"] = format.format;
  object["version"] = format.version;
  object["checksum"] = to_hex(checksum_of(object.dump()));
  return object.dump(2) + "\n";
}

json unseal(const std::string& text, const std::string& source, const SealedFormat& format,
            std::initializer_list<const char*> fields) {
  if (text.size() > format.largest_bytes) {
    refuse_sealed(source, format, "at most " + std::to_string(format.largest_bytes) + " bytes",
                  std::to_string(text.size()));
  }
  json whole = parse_sealed(text, source, format);
  check_version(whole, source, format);  // first, because newer versions may have other fields
  std::vector<const char*> names = {"checksum", "format", "version"};
  names.insert(names.end(), fields);
  check_names(whole, names, "it", source, format);
  check_seal(whole, source, format);
  return whole;
}

}  // namespace accelerant::checkpoint
