// Saves and loads the weights of models, and tensors, in files that Hugging Face's libraries and
// Python can open, and reads the files they write.
//
//   save_model(net, "runs/first/model");                             // model.safetensors
//   save_model(net, "runs/first/model", {.max_shard_size = "5GB"});  // in several files
//   save_model(net, "export", {.dtype = torch::kBFloat16});          // for inference
//
//   load_checkpoint_in_model(net, "runs/first/model");              // a folder
//   load_checkpoint_in_model(net, "model.safetensors");             // a file
//   load_checkpoint_in_model(net, "model.safetensors.index.json");  // a model in several files
//   load_checkpoint_in_model(net, "pytorch_model.bin", {.strict = false});
//   load_checkpoint_in_model(net, "net.pt");  // from C++'s torch::save(net, "net.pt")
//
//   save(embeddings, "embeddings.safetensors");                                  // one tensor
//   save({{"mean", mean}, {"deviation", deviation}}, "statistics.safetensors");  // by name
//   save(statistics, "statistics.pt", {.safe_serialization = false});            // for torch.load
//   StateDict statistics = load_tensors("statistics.safetensors");
//   at::Tensor embeddings = load_tensors("embeddings.safetensors")["tensor"];
//
// An interrupted save, even by a crash of the machine, leaves the previous model or file unchanged.
// Files of Python or TorchScript are never executed; only tensors are read from them. With several
// processes use Accelerator::save_model and Accelerator::save, which let one of them write.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/paging/device_map.h"
#include "accelerant/tensor/named_state.h"

namespace torch::nn {
class Module;
}

namespace accelerant {

// --- Models --------------------------------------------------------------------------------------

struct SaveModelOptions {
  // The largest size of a file, such as "10GB", "500MB" or "5GiB". A larger tensor gets a file of
  // its own. Default: "10GB".
  std::string max_shard_size = "10GB";

  // Write safetensors. false: write pytorch_model.bin, as torch.save does, for programs that only
  // read that. Default: true.
  bool safe_serialization = true;

  // The type in which to store floating-point tensors. Default: their own.
  std::optional<c10::ScalarType> dtype = std::nullopt;

  // Write checksums of the files to model.checksums.json beside them, which other programs ignore.
  // Loading and `accelerant verify` compare them: the formats themselves have none that are
  // compared, so flipped bits would become weights. A second thread computes them while the files
  // are written. Default: true.
  bool checksums = true;
};

struct SavedModel {
  // Names in the folder; the index, if any, is last. Without model.checksums.json.
  std::vector<std::string> files = {};
  uint64_t total_size = 0;  // bytes of all tensors
};

// Creates the folder if missing. Tied weights are stored once, together with their other names.
// Once the new model is in place, files of an earlier model that it does not replace are removed.
// Throws Error, leaving the earlier model unchanged, if a tensor cannot be stored (sparse,
// quantised, without data), the disk cannot be written, or another process is saving to the folder.
// Threads of one process that save to one folder wait for each other.
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
  // Throw Error for names that only the model or only the files have. false: ignore and return
  // them. Tensors of a different shape are always an Error. Default: true.
  bool strict = true;

  // Convert the model's floating-point tensors to this type before loading. Default: they keep
  // their types, and the stored values are converted.
  std::optional<c10::ScalarType> dtype = std::nullopt;

  // Where to move the model's tensors before loading, by the name of a module ("encoder.layer.0")
  // or tensor. The longest matching name wins; "" matches all. It is an Error if a tensor that is
  // loaded matches none. Tensors on the meta device get memory there. Those on "disk" go to the meta
  // device, and their values to `offload_folder`, from where dispatch_model() uses them;
  // load_checkpoint_and_dispatch() does both, without a copy. Default: they stay where they are.
  DeviceMap device_map = {};

  // Where the values of parts on "disk" are written, in the types of the model. If it is the folder
  // that is loaded, its own safetensors are used. Default: none, which is an Error if there are
  // such parts.
  std::string offload_folder = {};

  // Compare the files with model.checksums.json, if the model has one. Safetensors are compared
  // while they are copied, block by block of 1 MiB, before the block's bytes reach a tensor; other
  // files before anything changes, with one more pass over them. Default: true.
  bool checksums = true;

  // Names of modules or tensors, or the last parts of them ("norm", "layer_norm.weight"), that are
  // converted to float32 if `dtype` is float16, because their values may be too large for it.
  // Default: none.
  std::vector<std::string> keep_in_fp32_modules = {};
};

struct LoadedModel {
  std::vector<std::string> missing = {};     // names that only the model has
  std::vector<std::string> unexpected = {};  // names that only the files have
};

// Loads the weights of a model saved by save_model(), Hugging Face's libraries, torch.save or
// torch::save. Copies them into the model's existing tensors one after another: optimizers, data
// parallelism and tied weights stay intact, and at most one tensor is in memory in addition. Names,
// shapes, types and the headers of all files are checked before anything changes. Throws an Error
// that lists all differences if the files do not match the model, which is unchanged then, and an
// Error for files that cannot be read or are damaged. If the data turns out to be damaged, no
// damaged value gets into the model, but some tensors may have their new values and others not:
// load another model before you use it.
LoadedModel load_checkpoint_in_model(torch::nn::Module& module, const std::string& path,
                                     const LoadModelOptions& options = {});

// The same for tensors by name, which are filled.
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

// --- Models that are larger than the device ------------------------------------------------------

struct LoadAndDispatchOptions {
  // Where each part of the model goes: a map, or "auto", "balanced", "balanced_low_0" or
  // "sequential" (see paging/device_map.h). Default: none; the model is only loaded.
  DeviceMapChoice device_map = {};

  // For these names, the most that each device may take, and classes that stay on one device.
  // Default: what is free, and none.
  MaxMemory max_memory = {};
  std::vector<std::string> no_split_module_classes = {};

  // Where weights on "disk" are written that cannot be used from the checkpoint's own files: those
  // of files of torch.save, and of another type. Default: none, which is an Error if there are any.
  std::string offload_folder = {};

  // Convert floating-point tensors to this type. Default: the types of the model.
  std::optional<c10::ScalarType> dtype = std::nullopt;

  // See LoadModelOptions; false by default, as in Accelerate. Tensors that are missing keep their
  // values; on the meta device they have none, which is an Error.
  bool strict = false;

  // Compare what is loaded with model.checksums.json, if there is one. Files in which weights stay
  // are compared only as far as they are loaded: `accelerant verify` compares all. Default: true.
  bool checksums = true;

  // See DispatchOptions and OffloadOptions (paging/offload.h).
  std::optional<c10::Device> main_device = std::nullopt;
  bool offload_buffers = false;
  std::optional<MemorySize> budget = std::nullopt;
  int64_t prefetch = 1;
  bool zero_copy = true;
  std::vector<std::string> preload_module_classes = {};
};

// Loads a checkpoint into a model and dispatches it (dispatch_model()), without ever holding all
// weights: those on "disk" are used from the checkpoint's safetensors files themselves, which must
// stay as they are. The model may be on the meta device (init_empty_weights()).
//
//   auto net = init_empty_weights([&] { return Llama(config); });
//   load_checkpoint_and_dispatch(net, "llama-70b", {.device_map = "auto"});
//
// Names, shapes and types are checked before anything changes.
LoadedModel load_checkpoint_and_dispatch(torch::nn::Module& module, const std::string& checkpoint,
                                         const LoadAndDispatchOptions& options = {});

template <detail::ModuleHolder M>
LoadedModel load_checkpoint_and_dispatch(const M& model, const std::string& checkpoint,
                                         const LoadAndDispatchOptions& options = {}) {
  return load_checkpoint_and_dispatch(static_cast<torch::nn::Module&>(*model.ptr()), checkpoint,
                                      options);
}

// --- Tensors -------------------------------------------------------------------------------------

struct SaveTensorsOptions {
  // Write safetensors. false: write a file as torch.save does, which Python opens with
  // torch.load(weights_only=True). Default: true, unlike Accelerate.
  bool safe_serialization = true;
};

// The name of a single tensor in safetensors, where every tensor has a name. In a file of
// torch.save, a single tensor has none.
inline constexpr const char* kSingleTensorName = "tensor";

// Throws Error, leaving an existing file unchanged, if a tensor cannot be stored (sparse,
// quantised, without data) or the disk cannot be written. Names share their bytes in the file if
// and only if they mean the same tensor.
void save(const at::Tensor& tensor, const std::string& path,
          const SaveTensorsOptions& options = {});
void save(const StateDict& tensors, const std::string& path,
          const SaveTensorsOptions& options = {});

// Saves a std::map of tensors. (A template, so that save({{"mean", mean}}, path) calls the overload
// above.)
template <class Map>
requires std::same_as<Map, std::map<std::string, at::Tensor>>
void save(const Map& tensors, const std::string& path, const SaveTensorsOptions& options = {}) {
  StateDict state;
  for (const auto& [name, tensor] : tensors) state.insert(name, tensor);
  save(state, path, options);
}

struct LoadTensorsOptions {
  // Accept tensors of torch.save that repeat elements (strides of 0, as after expand()), or that
  // repeat each other's, and may be far larger than their file. Default: false, which is an Error:
  // a file of 500 bytes may describe tensors of terabytes. (load_checkpoint_in_model() needs no such
  // option, as the model says how large its tensors are.)
  bool allow_expanded = false;

  // Compare the file with the model.checksums.json beside it, if that lists the file, as
  // load_checkpoint_in_model() does. Default: true.
  bool checksums = true;
};

// All tensors of a file, on the CPU: of safetensors, of Python's torch.save (a tensor, which gets
// the name above, or a dict of tensors), or of a module saved by C++'s torch::save. Names that
// share one tensor in the file share one here.
StateDict load_tensors(const std::string& path, const LoadTensorsOptions& options = {});

}  // namespace accelerant
