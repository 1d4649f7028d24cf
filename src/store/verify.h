// Whether a checkpoint is what it was when it was written.
//
//   const Verification found = verify("checkpoints/checkpoint_3", Check::checksums);
//   for (const std::string& problem : found.problems) log::warn(problem);
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "store/manifest.h"

namespace accelerant::checkpoint {

enum class Check {
  sizes,      // the files are there and have the right sizes: costs nothing
  checksums,  // and every byte of them is right: reads them all
};

struct Verification {
  Manifest manifest = {};                  // empty if it cannot be read
  std::vector<std::string> problems = {};  // in any of these cases the checkpoint cannot be used
  std::vector<std::string> notes = {};     // files that are there and not in the manifest

  bool is_valid() const { return problems.empty(); }
};

// Never throws because of what is in the folder. Symbolic links are followed: only the bytes count.
Verification verify(const std::string& folder, Check check);

// What is wrong with one file of the manifest; nothing as a rule. Never throws because of what is
// in the folder.
std::optional<std::string> problem_of_file(const std::string& folder, const std::string& name,
                                           const FileRecord& record, Check check);

// The files that are missing or have other sizes, a text for each.
std::vector<std::string> wrong_sizes(const std::string& folder, const Manifest& manifest);

}  // namespace accelerant::checkpoint
