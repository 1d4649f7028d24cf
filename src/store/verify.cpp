#include "store/verify.h"

#include <exception>

#include "core/files.h"
#include "core/texts.h"
#include "store/checksum.h"

namespace accelerant::checkpoint {
namespace {

std::optional<std::string> wrong_size(const std::string& folder, const std::string& name,
                                      const FileRecord& record) {
  const std::string path = join_path(folder, name);
  std::optional<std::uint64_t> size;
  try {
    size = size_of_file(path);
    if (!size) return name + (path_exists(path) ? " is not a file" : " is missing");
  } catch (const std::exception& error) {
    return error.what();  // a failing disk, or a folder without permission
  }
  if (*size == record.size) return std::nullopt;
  return name + " has " + counted(*size, "byte") + " instead of " + std::to_string(record.size);
}

std::optional<std::string> wrong_checksum(const std::string& folder, const std::string& name,
                                          const FileRecord& record) {
  try {
    const FileRecord found = record_of(join_path(folder, name));
    if (found == record) return std::nullopt;
    return name + " is damaged: its checksum is " + to_hex(found.xxh3) + " instead of " +
           to_hex(record.xxh3);
  } catch (const std::exception& error) {
    return error.what();  // a failing disk, or a file without read permission
  }
}

// `prefix` is empty or ends in "/".
void note_unexpected_in(const std::string& folder, const std::string& prefix, Verification& found) {
  for (const std::string& entry : entries_of(join_path(folder, prefix))) {
    const std::string name = prefix + entry;
    const std::string path = join_path(folder, name);
    if (is_folder(path) && !is_link(path)) {
      note_unexpected_in(folder, name + "/", found);
    } else if (name != kManifestName && !found.manifest.files.contains(name)) {
      found.notes.push_back(name + " does not belong to the checkpoint");
    }
  }
}

void note_unexpected(const std::string& folder, Verification& found) {
  try {
    note_unexpected_in(folder, "", found);
  } catch (const std::exception& error) {
    found.notes.push_back(error.what());  // an unreadable folder that is not needed
  }
}

}  // namespace

std::optional<std::string> problem_of_file(const std::string& folder, const std::string& name,
                                           const FileRecord& record, Check check) {
  auto problem = wrong_size(folder, name, record);
  if (!problem && check == Check::checksums) problem = wrong_checksum(folder, name, record);
  return problem;
}

std::vector<std::string> wrong_sizes(const std::string& folder, const Manifest& manifest) {
  std::vector<std::string> problems;
  for (const auto& [name, record] : manifest.files) {
    if (auto problem = wrong_size(folder, name, record)) problems.push_back(std::move(*problem));
  }
  return problems;
}

Verification verify(const std::string& folder, Check check) {
  Verification found;
  try {
    found.manifest = read_manifest(folder);
  } catch (const std::exception& error) {
    found.problems = {error.what()};
    return found;
  }
  note_unexpected(folder, found);
  for (const auto& [name, record] : found.manifest.files) {
    auto problem = problem_of_file(folder, name, record, check);
    if (problem) found.problems.push_back(std::move(*problem));
  }
  return found;
}

}  // namespace accelerant::checkpoint
