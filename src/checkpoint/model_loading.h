// Loading a model in two steps, for what loads several objects and changes all of them or none.
#pragma once

#include <functional>
#include <string>

#include "accelerant/checkpoint/models.h"

namespace accelerant::checkpoint {

struct PreparedModel {
  LoadedModel names = {};
  std::function<void()> load = {};  // copies the weights
};

// Checks everything, as load_checkpoint_in_model() does, and changes nothing. The files are open
// until the result is gone.
PreparedModel prepare_loading(const StateDict& state, const std::string& path,
                              const LoadModelOptions& options = {});

}  // namespace accelerant::checkpoint
