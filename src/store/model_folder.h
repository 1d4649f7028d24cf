// The folder of a saved model. Its files have fixed names, so a new model cannot be put in place at
// once when it has several; what makes it whole or not at all is a folder in it:
//
//   model.saving.tmp/     the new files while they are written; when all are on the disk,
//   model.saving.tmp/complete    lists them, and from then on they count: files are taken from here first.
//
// Then they are moved to their places one by one. Who finds a folder that is complete, after a
// crash, goes on moving.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accelerant::checkpoint {

// Makes the folder ready for a new model and returns where its files are to be written. A complete
// model that waits there is put in place first; an incomplete one is removed.
std::string begin_model(const std::string& folder);

// All `files` (names) are written and synced: from now on they are the model. Puts them in place,
// in their order, and removes the files of the model before that the new one does not have.
void commit_model(const std::string& folder, const std::vector<std::string>& files);

// Removes what was written; nothing has changed. Does not throw.
void abandon_model(const std::string& folder);

// The files that make up a model that is complete, but not all in place; none as a rule.
std::optional<std::vector<std::string>> waiting_files(const std::string& folder);

// Whether a model, saved here or by Hugging Face's libraries, has files of that name.
bool is_model_file(const std::string& name);

// Where a file of the model is, if it is anywhere.
std::optional<std::string> find_model_file(const std::string& folder, const std::string& name);

// The name of the file to read first in a folder: one with all weights, or an index. Safetensors go
// first, as they need no trust. An Error where there is no model, or more than one of other names.
std::string main_model_file(const std::string& folder);

}  // namespace accelerant::checkpoint
