// Checkpoints whose content follows from a number, so that tests know what must be in them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <string>

#include "core/files.h"
#include "store/checkpoint_folder.h"
#include "store/file_writer.h"
#include "store/verify.h"

namespace sample {

using accelerant::checkpoint::CheckpointFolder;
using accelerant::checkpoint::Existing;
using accelerant::checkpoint::FileRecord;
using accelerant::checkpoint::FileWriter;
using accelerant::checkpoint::Manifest;

// Names and content of the files. One is larger than a writer's buffer, one is empty, one is in a
// sub-folder.
inline std::map<std::string, std::string> files_of(std::int64_t number) {
  std::mt19937_64 random(static_cast<std::uint64_t>(number));
  std::map<std::string, std::string> files = {{"model.safetensors", std::string((1 << 20) + 17, 0)},
                                              {"state.json", std::string(100, 0)},
                                              {"custom/deep/object.bin", std::string(3000, 0)},
                                              {"empty", ""}};
  for (auto& [name, content] : files) {
    for (std::size_t at = 0; at < content.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word = random();
      std::memcpy(&content[at], &word, std::min(sizeof word, content.size() - at));
    }
  }
  return files;
}

inline FileRecord write_file(const std::string& path, const std::string& content) {
  FileWriter file(path);
  file.write(std::as_bytes(std::span(content)));
  return file.finish();
}

// Called between begin() and commit().
inline Manifest write_files(const CheckpointFolder& folder, std::int64_t number) {
  Manifest manifest;
  manifest.content = {{"number", number}};
  for (const auto& [name, content] : files_of(number)) {
    manifest.files[name] = write_file(folder.new_file(name), content);
  }
  return manifest;
}

inline void save(const std::string& path, std::int64_t number,
                 Existing existing = Existing::refuse) {
  const CheckpointFolder folder(path, existing);
  folder.begin();
  folder.commit(write_files(folder, number));
}

// What is wrong with the checkpoint; empty if it is exactly the one with this number.
inline std::string fault_of(const std::string& path, std::int64_t number) {
  using accelerant::checkpoint::Check;
  const auto found = accelerant::checkpoint::verify(path, Check::checksums);
  std::string fault;
  for (const std::string& text : found.problems) fault += text + "\n";
  for (const std::string& text : found.notes) fault += text + "\n";
  if (!fault.empty()) return fault;
  if (found.manifest.content != nlohmann::json{{"number", number}}) {
    return "the content is " + found.manifest.content.dump() + "\n";
  }
  const auto files = files_of(number);
  for (const auto& [name, content] : files) {
    const std::string file = accelerant::join_path(path, name);
    if (accelerant::read_file(file, 1 << 22) != content) fault += name + " has other bytes\n";
  }
  if (found.manifest.files.size() != files.size()) fault += "other files\n";
  return fault;
}

}  // namespace sample
