// Loads the weights of a saved model: of save_model(), of Hugging Face's libraries, of torch.save, or of torch::save.
//
//   load_checkpoint_in_model(net, "runs/first/model");               // a folder
//   load_checkpoint_in_model(net, "model.safetensors");              // a file
//   load_checkpoint_in_model(net, "model.safetensors.index.json");   // one in several files
//   load_checkpoint_in_model(net, "pytorch_model.bin", {.strict = false});
//   load_checkpoint_in_model(net, "net.pt");                         // of torch::save(net, "net.pt") in C++
//
// Weights are copied into the tensors that the model has, one after the other: optimizers, data parallelism and
// tied weights stay as they are, and memory for one tensor is needed at most. Whether everything fits is
// known before anything is changed. A file of Python or TorchScript is never executed, only tensors are taken from it.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/tensor/state_dict.h"

namespace torch::nn {
class Module;
}

namespace accelerant {

struct LoadModelOptions {
  // Names that only the model or only the files have are an Error. false: they are left alone, and returned.
  // Tensors of another shape are an Error always.
  bool strict = true;

  // The model's floating-point tensors become of this type before they are loaded. Default: they keep their
  // types, and what the files hold is converted.
  std::optional<c10::ScalarType> dtype = std::nullopt;

  // Where the model's tensors are moved to before they are loaded: by the name of a module ("encoder.layer.0") or
  // tensor; the longest that fits counts, "" fits all. Default: they stay where they are.
  std::map<std::string, c10::Device> device_map = {};
};

struct LoadedModel {
  std::vector<std::string> missing = {};     // names of the model that the files do not have
  std::vector<std::string> unexpected = {};  // names in the files that the model does not have
};

// Throws Error, which lists all that does not fit, for files that do not fit the model, and for files that cannot
// be read or are damaged.
LoadedModel load_checkpoint_in_model(torch::nn::Module& module, const std::string& path,
                                     const LoadModelOptions& options = {});

// For tensors by name, which are filled.
LoadedModel load_checkpoint_in_model(const StateDict& state, const std::string& path,
                                     const LoadModelOptions& options = {});

// A prepared model, or the holder of a module, such as torch::nn::Linear.
template <class M>
requires detail::HasStateDict<M> || detail::HoldsModule<M> LoadedModel load_checkpoint_in_model(
    const M& model, const std::string& path, const LoadModelOptions& options = {}) {
  if constexpr (detail::HasStateDict<M>) {
    return load_checkpoint_in_model(model.state_dict(), path, options);
  } else {
    return load_checkpoint_in_model(static_cast<torch::nn::Module&>(*model.ptr()), path, options);
  }
}

}  // namespace accelerant
