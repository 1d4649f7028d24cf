// Checks whether a checkpoint is still as it was written.
//
//   const Verification found = verify("checkpoints/checkpoint_3", Check::checksums);
//   for (const std::string& problem : found.problems) log::warn(problem);
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "store/manifest.h"

namespace accelerant::checkpoint {

enum class Check {
  sizes,      // all files exist with the right sizes: takes no time
  checksums,  // also compares checksums: reads every byte
};

struct Problem {
  std::string text = {};

  // False if the disk, the permissions or the memory did not allow a look: the file may be good.
  bool is_damage = true;
};

// What an exception says about a file that was looked at.
Problem problem_of(const std::exception& exception);

struct Verification {
  Manifest manifest = {};                  // empty if it cannot be read
  std::vector<std::string> problems = {};  // any problem makes the checkpoint unusable
  std::vector<std::string> notes = {};     // files that are not in the manifest

  // Whether one of the problems is damage. Otherwise the checkpoint may be good.
  bool is_damaged = false;

  bool is_valid() const { return problems.empty(); }
};

// Never throws because of the folder's content. Symbolic links are followed: only the bytes count.
Verification verify(const std::string& folder, Check check);

// What is wrong with one file of the manifest; usually empty. Never throws because of the folder's
// content.
std::optional<Problem> problem_of_file(const std::string& folder, const std::string& name,
                                       const FileRecord& record, Check check);

// The files that are missing or have the wrong size, one text for each.
std::vector<std::string> wrong_sizes(const std::string& folder, const Manifest& manifest);

}  // namespace accelerant::checkpoint
