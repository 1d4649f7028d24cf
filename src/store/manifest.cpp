#include "store/manifest.h"

#include <cstddef>
#include <optional>
#include <string_view>

#include "accelerant/core/error.h"
#include "core/files.h"
#include "store/checksum.h"

namespace accelerant::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t kLargestManifest = 16 << 20;  // bytes; a file needs about 100
constexpr int kDeepestNesting = 64;                 // writing JSON recurses
constexpr std::size_t kLongestQuote = 80;

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kLongestQuote) text = text.substr(0, kLongestQuote) + "…";
  return text;
}

[[noreturn]] void refuse(const std::string& source, const std::string& expected,
                         const std::string& got, const std::string& hint = "") {
  throw Error(ErrorDetails{.problem = source + " is not a valid manifest of a checkpoint",
                           .expected = expected,
                           .got = got,
                           .hint = hint});
}

// Why a name cannot be that of a file; empty if it can.
std::optional<std::string> fault_of_name(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name.find('\0') != std::string_view::npos) return "it has a zero byte";
  if (name == kManifestName) return "it is the manifest's own name";
  while (true) {
    const std::size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return "it may lead out of the folder";
    if (slash == std::string_view::npos) return std::nullopt;
    name.remove_prefix(slash + 1);
  }
}

json parse_json(const std::string& text, const std::string& source) {
  const auto watch_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth > kDeepestNesting) {
      refuse(source, "at most " + std::to_string(kDeepestNesting) + " levels", "more");
    }
    return true;
  };
  try {
    return json::parse(text, watch_depth);
  } catch (const json::exception& error) {
    refuse(source, "JSON", error.what());
  }
}

// The value must be an object with exactly these fields.
void check_fields(const json& object, std::initializer_list<const char*> names,
                  const std::string& what, const std::string& source) {
  if (!object.is_object()) refuse(source, what + " to be an object", shown(object));
  for (const char* name : names) {
    if (!object.contains(name)) refuse(source, what + " to have a field " + name, shown(object));
  }
  if (object.size() != names.size()) refuse(source, "no other fields in " + what, shown(object));
}

void check_version(const json& whole, const std::string& source) {
  if (!whole.is_object()) refuse(source, "an object", shown(whole));
  const json format = whole.value("format", json());
  if (format != kManifestFormat) {
    refuse(source, "the format '" + std::string(kManifestFormat) + "'", shown(format));
  }
  const json version = whole.value("version", json());
  if (version == kManifestVersion) return;
  const bool is_newer = version.is_number_integer() && version > kManifestVersion;
  refuse(source, "version " + std::to_string(kManifestVersion) + " of the format",
         "version " + shown(version),
         is_newer ? "a newer version of Accelerant wrote it; load it with that version" : "");
}

void check_checksum(json whole, const std::string& source) {
  const json noted = whole["checksum"];
  whole.erase("checksum");
  const std::string actual = to_hex(checksum_of(whole.dump()));
  if (noted != actual)
    refuse(source, "the checksum " + shown(noted), actual, "the file is damaged");
}

FileRecord parse_record(const json& value, const std::string& name, const std::string& source) {
  const std::string what = "the file '" + name + "'";
  check_fields(value, {"size", "xxh3"}, what, source);
  const json& size = value["size"];
  const json& sum = value["xxh3"];
  if (!size.is_number_unsigned()) refuse(source, "the size of " + what + " in bytes", shown(size));
  const auto xxh3 = sum.is_string() ? from_hex(sum.get_ref<const std::string&>()) : std::nullopt;
  if (!xxh3) refuse(source, "16 digits as the checksum of " + what, shown(sum));
  return {.size = size.get<std::uint64_t>(), .xxh3 = *xxh3};
}

json to_json(const Manifest& manifest) {
  json files = json::object();
  for (const auto& [name, record] : manifest.files) {
    files[name] = {{"size", record.size}, {"xxh3", to_hex(record.xxh3)}};
  }
  return {{"format", kManifestFormat},
          {"version", kManifestVersion},
          {"files", std::move(files)},
          {"content", manifest.content}};
}

}  // namespace

void check_file_name(const std::string& name) {
  if (const auto fault = fault_of_name(name)) {
    throw Error(
        ErrorDetails{.problem = "A file of a checkpoint cannot have the name '" + name + "'",
                     .expected = "a path inside the checkpoint, such as 'custom/state.json'",
                     .got = "an invalid name: " + *fault});
  }
}

std::string to_text(const Manifest& manifest) {
  std::string text;
  try {
    json whole = to_json(manifest);
    whole["checksum"] = to_hex(checksum_of(whole.dump()));
    text = whole.dump(2) + "\n";
  } catch (const json::exception& error) {
    throw Error(ErrorDetails{.problem = "The manifest of a checkpoint cannot be written",
                             .expected = "names and content in UTF-8",
                             .got = error.what()});
  }
  parse_manifest(text, "This manifest");  // never write what cannot be read back
  return text;
}

Manifest parse_manifest(const std::string& text, const std::string& source) {
  if (text.size() > kLargestManifest) {
    refuse(source, "at most " + std::to_string(kLargestManifest) + " bytes",
           std::to_string(text.size()));
  }
  json whole = parse_json(text, source);
  check_version(whole, source);  // first, because newer versions may have other fields
  check_fields(whole, {"checksum", "content", "files", "format", "version"}, "it", source);
  check_checksum(whole, source);
  Manifest manifest;
  manifest.content = std::move(whole["content"]);
  if (!manifest.content.is_object()) {
    refuse(source, "content to be an object", shown(manifest.content));
  }
  if (!whole["files"].is_object()) refuse(source, "files to be an object", shown(whole["files"]));
  for (const auto& [name, value] : whole["files"].items()) {
    check_file_name(name);
    manifest.files[name] = parse_record(value, name, source);
  }
  return manifest;
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = join_path(folder, kManifestName);
  return parse_manifest(read_file(path, kLargestManifest), path);
}

}  // namespace accelerant::checkpoint
