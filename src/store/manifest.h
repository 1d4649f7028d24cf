// The table of contents of a checkpoint, manifest.json: its files, with their sizes and checksums,
// and what the trainer needs to know before reading them.
//
//   Manifest manifest;
//   manifest.files["model.safetensors"] = writer.finish();
//   manifest.content = {{"step", 1200}, {"world_size", 4}};
//   std::string text = to_text(manifest);
//
//   {"checksum": "…", "content": {…}, "files": {"model.safetensors": {"size": 12, "xxh3": "…"}},
//    "format": "accelerant-checkpoint", "version": 1}
//
// `checksum` is the XXH3 of the rest, as nlohmann-json prints it without spaces and line breaks.
// Damage is detected, while a manifest that was only reformatted stays valid.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "store/file_record.h"

namespace accelerant::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr const char* kManifestFormat = "accelerant-checkpoint";
inline constexpr int kManifestVersion = 1;

struct Manifest {
  // By name: the path inside the checkpoint, with "/" as separator.
  std::map<std::string, FileRecord> files = {};

  // Any data of the trainer: world size, versions, step. Always an object.
  nlohmann::json content = nlohmann::json::object();

  bool operator==(const Manifest&) const = default;
};

// Throws Error unless the name stays in the folder and is not the manifest's own: "a" and
// "custom/a" are fine, but not "", "/a", "../a", "a//b", "a/./b" or "a/../../b".
void check_file_name(const std::string& name);

// parse_manifest accepts everything that to_text accepts. Throws Error for invalid names (see
// above), and for content that is not UTF-8 or too large.
std::string to_text(const Manifest& manifest);

// Throws Error, naming `source`, for anything that to_text would not write. The message says so if
// the version is newer.
Manifest parse_manifest(const std::string& text, const std::string& source = kManifestName);

// The manifest of the checkpoint in this folder. Reads at most 16 MiB.
Manifest read_manifest(const std::string& folder);

}  // namespace accelerant::checkpoint
