// Saves the weights of a model as Hugging Face's libraries do, so that they open it and the reverse.
//
//   save_model(net, "runs/first/model");                                // model.safetensors
//   save_model(net, "runs/first/model", {.max_shard_size = "5GB"});     // in several files, with an index
//   save_model(net, "export", {.dtype = torch::kBFloat16});             // for inference
//
// Tied weights are stored once, with a note of their other names. A save that is interrupted, by a crash of the
// machine even, leaves the model that was in the folder before; files of an earlier model that the new one
// does not have are removed when it is in place.
//
// With several processes use Accelerator::save_model, which lets one of them write.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/tensor/state_dict.h"

namespace torch::nn {
class Module;
}

namespace accelerant {

struct SaveModelOptions {
  // The largest size of a file, as "10GB", "500MB" or "5GiB"; a tensor that is larger gets a file of its own.
  std::string max_shard_size = "10GB";

  // Writes safetensors. false: pytorch_model.bin, as torch.save does, for programs that know nothing else.
  bool safe_serialization = true;

  // The type that floating-point tensors are stored in. Default: their own.
  std::optional<c10::ScalarType> dtype = std::nullopt;
};

struct SavedModel {
  std::vector<std::string> files = {};  // their names in the folder; an index last
  uint64_t total_size = 0;              // bytes of all tensors
};

// Makes the folder if need be. Throws Error, and leaves what was there, if a tensor cannot be stored (sparse,
// quantised, without data) or the disk cannot be written.
SavedModel save_model(const torch::nn::Module& module, const std::string& folder,
                      const SaveModelOptions& options = {});
SavedModel save_model(const StateDict& state, const std::string& folder,
                      const SaveModelOptions& options = {});

// A prepared model, or the holder of a module, such as torch::nn::Linear.
template <class M>
requires detail::HasStateDict<M> || detail::HoldsModule<M> SavedModel
save_model(const M& model, const std::string& folder, const SaveModelOptions& options = {}) {
  if constexpr (detail::HasStateDict<M>) {
    return save_model(model.state_dict(), folder, options);
  } else {
    return save_model(static_cast<const torch::nn::Module&>(*model.ptr()), folder, options);
  }
}

}  // namespace accelerant
