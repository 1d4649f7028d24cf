// The table of contents of a checkpoint, its file manifest.json: which files belong to it, with
// their sizes and checksums, and what the trainer wants to know before it reads them.
//
//   Manifest manifest;
//   manifest.files["model.safetensors"] = writer.finish();
//   manifest.content = {{"step", 1200}, {"world_size", 4}};
//   std::string text = to_text(manifest);
//
//   {"checksum": "…", "content": {…}, "files": {"model.safetensors": {"size": 12, "xxh3": "…"}},
//    "format": "accelerant-checkpoint", "version": 1}
//
// `checksum` is the XXH3 of the rest, written by nlohmann-json without spaces and line breaks: a
// manifest that was damaged is told from a good one, while one that was only laid out anew stays
// good.
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
  // By name: the path in the checkpoint, with "/" between its parts.
  std::map<std::string, FileRecord> files = {};

  // Whatever the trainer wants: world size, versions, step. Always an object.
  nlohmann::json content = nlohmann::json::object();

  bool operator==(const Manifest&) const = default;
};

// An Error unless the name stays in the folder and is not that of the manifest itself: "a",
// "custom/a", but not "", "/a", "../a", "a//b", "a/./b", "a/../../b".
void check_file_name(const std::string& name);

// What to_text accepts, parse_manifest accepts too. Errors: a name as above, content that is not
// UTF-8 or too much of it.
std::string to_text(const Manifest& manifest);

// Everything that is not as to_text writes it is an Error, which names `source`. A newer version is
// told as such.
Manifest parse_manifest(const std::string& text, const std::string& source = kManifestName);

// Of the checkpoint in this folder. At most 16 MiB are read.
Manifest read_manifest(const std::string& folder);

}  // namespace accelerant::checkpoint
