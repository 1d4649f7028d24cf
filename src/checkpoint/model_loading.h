// Loads a model in two steps, for code that loads several objects and changes all of them or none.
#pragma once

#include <functional>
#include <string>

#include "accelerant/checkpoint/models.h"
#include "store/model_files.h"

namespace accelerant::checkpoint {

// Opens the files of a model. With `checksums` they are compared while they are read, as far as
// possible: see Compare. Open them once per load: another process may save the model at any time.
WeightFiles open_to_load(const std::string& path, bool checksums);

// Checks that names, shapes and types of the files fit, and returns the names that only one side
// has; if `strict`, these are an Error too. `path` and `hint`, which says what to do about such
// names, are for the Error.
LoadedModel require_match(const StateDict& state, const TensorsByName& files,
                          const std::string& path, bool strict, const std::string& hint);

// What to do about names that do not match, for options with a field `strict`.
inline constexpr const char* kIgnoreOtherNames =
    "Pass strict = false to ignore names that only one side has.";

struct PreparedModel {
  LoadedModel names = {};
  std::function<void()> load = {};  // copies the weights
};

// Checks names, shapes, types and headers, like load_checkpoint_in_model(), without changing
// anything; checksums of the data are compared while it is loaded. The files stay open until the
// result is destroyed. `hint` says what to do about names that do not match.
PreparedModel prepare_loading(const StateDict& state, const std::string& path,
                              const LoadModelOptions& options, const std::string& hint);

// Calls `fill`, which changes a model. An Error of it then also says that the model is half loaded.
void fill_model(const std::function<void()>& fill);

}  // namespace accelerant::checkpoint
