// The folder of a saved model. Its files have fixed names, so a new model of several files cannot
// be put in place atomically. A folder inside it makes the save all-or-nothing:
//
//   model.saving.tmp/          holds the new files while they are written.
//   model.saving.tmp/complete  lists them once all are on the disk. From then on they count:
//                              readers look here first.
//
// Then the files are moved into place one by one. Whoever finds a complete folder after a crash
// finishes the move. The checksums of the files (model_checksums.h) are one more file of the model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "store/model_checksums.h"

namespace accelerant::checkpoint {

inline constexpr const char* kModelSavingName = "model.saving.tmp";

// Prepares the folder for a new model and returns where to write its files. First puts a complete
// model that waits there in place, or removes an incomplete one.
std::string begin_model(const std::string& folder);

// Call this once all `files` (names) are written and synced: from now on they are the model. Puts
// them in place, in their order, and removes files of the previous model that the new one does not
// have, with its checksums before all others. `sums` become the new ones; if empty, there are none.
void commit_model(const std::string& folder, std::vector<std::string> files,
                  const ModelChecksums& sums);

// Removes what was written; the previous model is unchanged. Does not throw.
void abandon_model(const std::string& folder);

// The files of a complete model that are not all in place yet; usually empty.
std::optional<std::vector<std::string>> waiting_files(const std::string& folder);

// Whether models saved here or by Hugging Face's libraries have files of that name.
bool is_model_file(const std::string& name);

// Where a file of the model is; empty if it does not exist.
std::optional<std::string> find_model_file(const std::string& folder, const std::string& name);

// The name of the file to read first in a folder: one with all weights, or an index. Prefers
// safetensors, which need no trust. Throws Error if there is no model, or if several files with
// other names could be it.
std::string main_model_file(const std::string& folder);

}  // namespace accelerant::checkpoint
