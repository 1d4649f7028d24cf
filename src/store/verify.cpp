#include "store/verify.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <new>
#include <utility>

#include "core/files.h"
#include "core/texts.h"
#include "store/checksum.h"

namespace accelerant::checkpoint {
namespace {

std::optional<Problem> wrong_size(const std::string& folder, const std::string& name,
                                  const FileRecord& record) {
  const std::string path = join_path(folder, name);
  std::optional<std::uint64_t> size;
  try {
    size = size_of_file(path);
    if (!size) return Problem{name + (path_exists(path) ? " is not a file" : " is missing")};
  } catch (const std::exception& exception) {
    return problem_of(exception);
  }
  if (*size == record.size) return std::nullopt;
  return Problem{name + " has " + counted(*size, "byte") + " instead of " +
                 std::to_string(record.size)};
}

std::optional<Problem> wrong_checksum(const std::string& folder, const std::string& name,
                                      const FileRecord& record) {
  try {
    const FileRecord found = record_of(join_path(folder, name));
    if (found == record) return std::nullopt;
    return Problem{name + " is damaged: its checksum is " + to_hex(found.xxh3) + " instead of " +
                   to_hex(record.xxh3)};
  } catch (const std::exception& exception) {
    return problem_of(exception);
  }
}

void add(Problem problem, Verification& found) {
  found.problems.push_back(std::move(problem.text));
  found.is_damaged |= problem.is_damage;
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

// Of the system's reasons some describe what is on the disk; the others, such as a missing
// permission or a network disk that does not answer, say nothing about it.
Problem problem_of(const std::exception& exception) {
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) {
    return {.text = "the memory does not suffice to read it", .is_damage = false};
  }
  const auto* const error = dynamic_cast<const SystemError*>(&exception);
  if (error == nullptr) return {.text = exception.what()};
  constexpr std::array kDamage = {ENOENT, ENOTDIR, EISDIR, ELOOP, EFBIG};
  return {.text = error->what(),
          .is_damage = std::ranges::find(kDamage, error->number()) != kDamage.end()};
}

std::optional<Problem> problem_of_file(const std::string& folder, const std::string& name,
                                       const FileRecord& record, Check check) {
  auto problem = wrong_size(folder, name, record);
  if (!problem && check == Check::checksums) problem = wrong_checksum(folder, name, record);
  return problem;
}

std::vector<std::string> wrong_sizes(const std::string& folder, const Manifest& manifest) {
  std::vector<std::string> problems;
  for (const auto& [name, record] : manifest.files) {
    if (auto problem = wrong_size(folder, name, record)) {
      problems.push_back(std::move(problem->text));
    }
  }
  return problems;
}

Verification verify(const std::string& folder, Check check) {
  Verification found;
  try {
    found.manifest = read_manifest(folder);
  } catch (const std::exception& exception) {
    add(problem_of(exception), found);
    return found;
  }
  note_unexpected(folder, found);
  for (const auto& [name, record] : found.manifest.files) {
    if (auto problem = problem_of_file(folder, name, record, check)) {
      add(std::move(*problem), found);
    }
  }
  return found;
}

}  // namespace accelerant::checkpoint
