// Loads a model in two steps, for code that loads several objects and changes all of them or none.
#pragma once

#include <functional>
#include <string>

#include "accelerant/checkpoint/models.h"

namespace accelerant::checkpoint {

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
