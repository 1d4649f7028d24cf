// Weights of models, and tensors, to and from files that Hugging Face's libraries and Python open,
// and the reverse.
//
//   save_model(net, "runs/first/model");                             // model.safetensors
//   save_model(net, "runs/first/model", {.max_shard_size = "5GB"});  // in several files
//   save_model(net, "export", {.dtype = torch::kBFloat16});          // for inference
//
//   load_checkpoint_in_model(net, "runs/first/model");              // a folder
//   load_checkpoint_in_model(net, "model.safetensors");             // a file
//   load_checkpoint_in_model(net, "model.safetensors.index.json");  // one in several files
//   load_checkpoint_in_model(net, "pytorch_model.bin", {.strict = false});
//   load_checkpoint_in_model(net, "net.pt");  // of torch::save(net, "net.pt") in C++
//
//   save(embeddings, "embeddings.safetensors");                                  // one tensor
//   save({{"mean", mean}, {"deviation", deviation}}, "statistics.safetensors");  // some, by name
//   save(statistics, "statistics.pt", {.safe_serialization = false});            // for torch.load
//   StateDict statistics = load_tensors("statistics.safetensors");
//   at::Tensor embeddings = load_tensors("embeddings.safetensors")["tensor"];
//
// A save that is interrupted, by a crash of the machine even, leaves the model or file that was
// there before. Of a file of Python or TorchScript nothing is executed, only tensors are taken from
// it. With several processes use Accelerator::save_model and Accelerator::save, which let one of
// them write.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/tensor/named_state.h"

namespace torch::nn {
class Module;
}

namespace accelerant {

// --- Models --------------------------------------------------------------------------------------

struct SaveModelOptions {
  // The largest size of a file, as "10GB", "500MB" or "5GiB"; a tensor that is larger gets a file
  // of its own.
  std::string max_shard_size = "10GB";

  // Writes safetensors. false: pytorch_model.bin, as torch.save does, for programs that know
  // nothing else.
  bool safe_serialization = true;

  // The type that floating-point tensors are stored in. Default: their own.
  std::optional<c10::ScalarType> dtype = std::nullopt;
};

struct SavedModel {
  std::vector<std::string> files = {};  // their names in the folder; an index last
  uint64_t total_size = 0;              // bytes of all tensors
};

// Makes the folder if need be. Tied weights are stored once, with a note of their other names;
// files of an earlier model that the new one does not have are removed when it is in place. Throws
// Error, and leaves what was there, if a tensor cannot be stored (sparse, quantised, without data)
// or the disk cannot be written.
SavedModel save_model(const torch::nn::Module& module, const std::string& folder,
                      const SaveModelOptions& options = {});
SavedModel save_model(const StateDict& state, const std::string& folder,
                      const SaveModelOptions& options = {});

// A prepared model, or the holder of a module, such as torch::nn::Linear.
template <class M>
requires detail::HasStateDict<M> || detail::ModuleHolder<M> SavedModel
save_model(const M& model, const std::string& folder, const SaveModelOptions& options = {}) {
  if constexpr (detail::HasStateDict<M>) {
    return save_model(model.state_dict(), folder, options);
  } else {
    return save_model(static_cast<const torch::nn::Module&>(*model.ptr()), folder, options);
  }
}

struct LoadModelOptions {
  // Names that only the model or only the files have are an Error. false: they are left alone, and
  // returned. Tensors of another shape are an Error always.
  bool strict = true;

  // The model's floating-point tensors become of this type before they are loaded. Default: they
  // keep their types, and what the files hold is converted.
  std::optional<c10::ScalarType> dtype = std::nullopt;

  // Where the model's tensors are moved to before they are loaded: by the name of a module
  // ("encoder.layer.0") or tensor; the longest that fits counts, "" fits all. Default: they stay
  // where they are.
  std::map<std::string, c10::Device> device_map = {};
};

struct LoadedModel {
  std::vector<std::string> missing = {};     // names of the model that the files do not have
  std::vector<std::string> unexpected = {};  // names in the files that the model does not have
};

// Loads the weights of a saved model: of save_model(), of Hugging Face's libraries, of torch.save,
// or of torch::save. They are copied into the tensors that the model has, one after the other:
// optimizers, data parallelism and tied weights stay as they are, and memory for one tensor is
// needed at most. Whether everything fits is known before anything is changed. Throws Error, which
// lists all that does not fit, for files that do not fit the model, and for files that cannot be
// read or are damaged.
LoadedModel load_checkpoint_in_model(torch::nn::Module& module, const std::string& path,
                                     const LoadModelOptions& options = {});

// For tensors by name, which are filled.
LoadedModel load_checkpoint_in_model(const StateDict& state, const std::string& path,
                                     const LoadModelOptions& options = {});

// A prepared model, or the holder of a module, such as torch::nn::Linear.
template <class M>
requires detail::HasStateDict<M> || detail::ModuleHolder<M> LoadedModel load_checkpoint_in_model(
    const M& model, const std::string& path, const LoadModelOptions& options = {}) {
  if constexpr (detail::HasStateDict<M>) {
    return load_checkpoint_in_model(model.state_dict(), path, options);
  } else {
    return load_checkpoint_in_model(static_cast<torch::nn::Module&>(*model.ptr()), path, options);
  }
}

// --- Tensors -------------------------------------------------------------------------------------

struct SaveTensorsOptions {
  // Writes safetensors. false: a file of torch.save, which Python opens with
  // torch.load(weights_only=True). Default: true, unlike Accelerate.
  bool safe_serialization = true;
};

// The name of a single tensor in safetensors, where each has one. In a file of torch.save it stands
// alone.
inline constexpr const char* kSingleTensorName = "tensor";

// Throws Error, and leaves what was there, for a tensor that cannot be stored (sparse, quantised,
// without data), and if the disk cannot be written. Names of one tensor, and only those, share
// their bytes in the file.
void save(const at::Tensor& tensor, const std::string& path,
          const SaveTensorsOptions& options = {});
void save(const StateDict& tensors, const std::string& path,
          const SaveTensorsOptions& options = {});

// A std::map of tensors. (A template, so that save({{"mean", mean}}, path) means the one above.)
template <class Map>
requires std::same_as<Map, std::map<std::string, at::Tensor>>
void save(const Map& tensors, const std::string& path, const SaveTensorsOptions& options = {}) {
  StateDict state;
  for (const auto& [name, tensor] : tensors) state.insert(name, tensor);
  save(state, path, options);
}

// All tensors of a file, on the CPU: of safetensors, of torch.save in Python (a tensor, which gets
// the name above, or a dict of tensors), or of torch::save of a module in C++. Names that share one
// tensor in the file do so here.
StateDict load_tensors(const std::string& path);

}  // namespace accelerant
