#include "store/manifest.h"

#include <cstddef>
#include <optional>
#include <string_view>

#include "accelerant/core/error.h"
#include "core/files.h"
#include "store/checksum.h"
#include "store/sealed_json.h"

namespace accelerant::checkpoint {
namespace {

using nlohmann::json;

// A file needs about 100 bytes.
constexpr SealedFormat kSealed = {.format = kManifestFormat,
                                  .version = kManifestVersion,
                                  .what = "manifest of a checkpoint",
                                  .largest_bytes = 16 << 20};

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

FileRecord parse_record(const json& value, const std::string& name, const std::string& source) {
  const std::string what = "the file '" + name + "'";
  check_sealed_fields(value, {"size", "xxh3"}, what, source, kSealed);
  const json& size = value["size"];
  const json& sum = value["xxh3"];
  if (!size.is_number_unsigned()) {
    refuse_sealed(source, kSealed, "the size of " + what + " in bytes", shown_json(size));
  }
  const auto xxh3 = sum.is_string() ? from_hex(sum.get_ref<const std::string&>()) : std::nullopt;
  if (!xxh3) {
    refuse_sealed(source, kSealed, "16 digits as the checksum of " + what, shown_json(sum));
  }
  return {.size = size.get<std::uint64_t>(), .xxh3 = *xxh3};
}

json to_json(const Manifest& manifest) {
  json files = json::object();
  for (const auto& [name, record] : manifest.files) {
    files[name] = {{"size", record.size}, {"xxh3", to_hex(record.xxh3)}};
  }
  return {{"files", std::move(files)}, {"content", manifest.content}};
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
    text = seal(to_json(manifest), kSealed);
  } catch (const json::exception& error) {
    throw Error(ErrorDetails{.problem = "The manifest of a checkpoint cannot be written",
                             .expected = "names and content in UTF-8",
                             .got = error.what()});
  }
  parse_manifest(text, "This manifest");  // never write what cannot be read back
  return text;
}

Manifest parse_manifest(const std::string& text, const std::string& source) {
  json whole = unseal(text, source, kSealed, {"content", "files"});
  Manifest manifest;
  manifest.content = std::move(whole["content"]);
  if (!manifest.content.is_object()) {
    refuse_sealed(source, kSealed, "content to be an object", shown_json(manifest.content));
  }
  if (!whole["files"].is_object()) {
    refuse_sealed(source, kSealed, "files to be an object", shown_json(whole["files"]));
  }
  for (const auto& [name, value] : whole["files"].items()) {
    check_file_name(name);
    manifest.files[name] = parse_record(value, name, source);
  }
  return manifest;
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = join_path(folder, kManifestName);
  return parse_manifest(read_file(path, kSealed.largest_bytes), path);
}

}  // namespace accelerant::checkpoint
