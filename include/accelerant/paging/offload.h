// Models that are larger than the device: their weights live in host memory, in files or on another
// GPU, and come to the device when an operator uses them.
//
//   cpu_offload(net, {.execution_device = torch::kCUDA});         // weights in host memory
//   disk_offload(net, "offload", {.execution_device = torch::kCUDA});           // in files
//   dispatch_model(net, {{"encoder", 0}, {"decoder", "cpu"}, {"head", "disk"}},
//                  {.offload_folder = "offload"});                // each part somewhere else
//
//   at::Tensor output = net->forward(input.to(torch::kCUDA));     // as always
//   undo_offload(net);                                            // an ordinary model again
//
// To load a model's weights and dispatch it in one step, without ever holding all of them:
// load_checkpoint_and_dispatch() (checkpoint/models.h).
//
// Accelerate moves weights in hooks around each module's forward. Here the tensors themselves know
// where their values are (docs/big_models.md): modules need not be called through anything, weights
// come in good time before they are needed, backward and optimizers work too, and no module need be
// named because it uses a child's weights without calling the child. Everything is computed on one
// device, the execution device, also what a device map places on another GPU: that one lends its
// memory. Inputs are not moved; pass them on the execution device.
//
// Small parameters (up to 100,000 elements: norms, biases) and buffers are always on the execution
// device. On the CPU nothing need be moved at all: weights in host memory and in files are used
// where they are, and the kernel reads the pages of a file as they are needed.
//
// The parameters own what brings their values, and free it when the last of them is gone: no handle
// need be kept. Optimizers and everything else that holds a parameter stay valid. A model is offloaded
// once; to change how, undo it first.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "accelerant/paging/device_map.h"

namespace accelerant {

struct OffloadOptions {
  // Where the model computes. Default: where its first parameter is, if that is a GPU (or other
  // accelerator), or else the current GPU, or else the CPU.
  std::optional<c10::Device> execution_device = std::nullopt;

  // Offload buffers with more than 100,000 elements too, for example tables of masks. Default:
  // buffers are on the execution device.
  bool offload_buffers = false;

  // How much memory of the execution device the weights that come and go may take: bytes, or a text
  // such as "4GiB". What fits stays until other weights need the room. Default: room for the two
  // largest units (a layer or so) and those that are fetched ahead.
  std::optional<MemorySize> budget = std::nullopt;

  // How many units are fetched ahead of their use. Default: 1.
  int64_t prefetch = 1;

  // On the CPU: use weights in host memory and files where they are. false: copy them in and out as
  // on a GPU, within the budget; slower, but private memory stays below a limit even if weights are
  // changed. Default: true.
  bool zero_copy = true;

  // Classes of modules whose weights, those of their children included, come together. Default: the
  // children of ModuleLists and Sequentials come as a whole, elsewhere the weights of one module.
  std::vector<std::string> preload_module_classes = {};
};

// All weights live in host memory (pinned, if the execution device is a GPU), and may change.
// Throws Error, and changes nothing, if the model is offloaded already, is on the meta device, or if
// other tensors share memory with its parameters.
void cpu_offload(torch::nn::Module& module, const OffloadOptions& options = {});

// All weights live in files in this folder. A safetensors model there that has the same values, or
// any values if the parameter is on the meta device, is used as it is. Other tensors of the model,
// small ones and buffers included, are written to offload.safetensors, which replaces an older one:
// an empty model finds its parameters there later. Its buffers keep their values, unless they are
// on the meta device too. Files are never written to: weights that are changed move to host memory.
//
// Files must not be truncated meanwhile. If one is, what is read from it throws; but where weights
// are used in place (zero_copy on the CPU), the system ends the process with SIGBUS.
//
// Throws Error, and changes nothing, for the reasons above, and if the folder cannot be written or
// lacks values for a parameter on the meta device.
void disk_offload(torch::nn::Module& module, const std::string& folder,
                  const OffloadOptions& options = {});

// A tensor in a safetensors file.
struct OffloadedWeight {
  std::string safetensors_file = {};  // its path
  std::string weight_name = {};       // in the file; empty: the same as in the model
};

struct DispatchOptions {
  // The execution device. Default: the first GPU of the map, or else the CPU.
  std::optional<c10::Device> main_device = std::nullopt;

  // Where weights go that the map places on "disk", see disk_offload(). Default: none, which is an
  // Error unless the index below has them all.
  std::string offload_folder = {};

  // Where weights on "disk" are already, by the model's names. Default: in the folder.
  std::map<std::string, OffloadedWeight> offload_index = {};

  // See OffloadOptions.
  bool offload_buffers = false;
  std::optional<MemorySize> budget = std::nullopt;
  int64_t prefetch = 1;
  bool zero_copy = true;
  std::vector<std::string> preload_module_classes = {};
};

// Places each part of a model where the map says: on the execution device, or elsewhere, from where
// it comes when it is used. If the map names one device only, and not the disk, the model is moved
// there and is an ordinary model. On a machine with a CPU only, what is placed on "cpu" is ordinary
// too. Tied parameters live where the first of them is placed.
//
// Throws Error, and changes nothing, if the map leaves tensors out, and for the reasons above. Names
// in the map that the model does not have are a warning.
void dispatch_model(torch::nn::Module& module, const DeviceMap& device_map,
                    const DispatchOptions& options = {});

// Whether parameters or buffers of the module or its children come and go.
bool has_offloaded_params(const ModelArgument& model);

// Throws Error if parameters that came and went no longer do, because the program replaced their
// memory: Module::to() another device or type brings the whole parameter there. The model still
// computes correctly, but no longer within the budget.
void verify_offload(const ModelArgument& model);

// What an offloaded model has done so far, and what it takes now. Of a model that is not offloaded,
// all is 0.
struct OffloadStatistics {
  uint64_t units = 0;            // groups of weights that come and go together
  uint64_t offloaded_bytes = 0;  // of all units
  uint64_t in_place_bytes = 0;   // of those used where they are, without a copy
  uint64_t budget_bytes = 0;     // the limit; UINT64_MAX: none
  uint64_t resident_bytes = 0;   // on the execution device at present
  uint64_t peak_bytes = 0;       // highest value of resident_bytes
  uint64_t fetches = 0;          // units brought in
  uint64_t fetched_bytes = 0;    // by them
  uint64_t misses = 0;           // uses that found a unit absent, in spite of fetching ahead
};
OffloadStatistics offload_statistics(const ModelArgument& model);

// Ends offloading, of all that was offloaded together with parameters of this module: they are
// ordinary parameters with their present values again, on `device`, or by default where they were
// before (from the meta device: on the CPU). Does nothing if nothing is offloaded. Throws if there
// is not enough memory, or a file cannot be read; then call it again. If that is another device
// than the execution device, aliases (views, results of detach(), what a forward saved for
// backward) stay behind there, with memory of their own as far as there is room, or throw when they
// are used.
void undo_offload(torch::nn::Module& module, std::optional<c10::Device> device = std::nullopt);

// --- Models that take turns ----------------------------------------------------------------------

namespace paging {
class OffloadedModel;
}

// Moves a model back, see cpu_offload_with_hook(). Copies mean the same model. Keeps no model alive.
class OffloadHook {
 public:
  // Frees the memory that the model takes on the execution device. It comes back with the next use.
  // Does nothing if the model is gone or not offloaded any more.
  void offload() const;

  // Ends offloading, see undo_offload().
  void remove() const;

 private:
  friend OffloadHook cpu_offload_with_hook(torch::nn::Module& module,
                                           const struct HookedOffloadOptions& options);
  explicit OffloadHook(std::weak_ptr<paging::OffloadedModel> model) : model_(std::move(model)) {}

  std::weak_ptr<paging::OffloadedModel> model_;
};

struct HookedOffloadOptions {
  // See OffloadOptions.
  std::optional<c10::Device> execution_device = std::nullopt;

  // Whenever this model is used, the model of that hook is moved back first. Default: none.
  std::optional<OffloadHook> prev_module_hook = std::nullopt;

  // See OffloadOptions.
  bool zero_copy = true;
};

// For several models that are used in turn: the model lives in host memory, comes to the execution
// device when it is used, and stays there, without a limit, until hook.offload() or until the next
// model is used.
//
//   auto encoder_hook = cpu_offload_with_hook(encoder);
//   auto decoder_hook = cpu_offload_with_hook(decoder, {.prev_module_hook = encoder_hook});
//   for (...) latent = decoder->forward(encoder->forward(latent));
//   decoder_hook.offload();
OffloadHook cpu_offload_with_hook(torch::nn::Module& module,
                                  const HookedOffloadOptions& options = {});

// --- The same for holders, such as torch::nn::Linear -------------------------------------------

template <detail::ModuleHolder M>
void cpu_offload(const M& model, const OffloadOptions& options = {}) {
  cpu_offload(static_cast<torch::nn::Module&>(*model.ptr()), options);
}

template <detail::ModuleHolder M>
void disk_offload(const M& model, const std::string& folder, const OffloadOptions& options = {}) {
  disk_offload(static_cast<torch::nn::Module&>(*model.ptr()), folder, options);
}

template <detail::ModuleHolder M>
void dispatch_model(const M& model, const DeviceMap& device_map,
                    const DispatchOptions& options = {}) {
  dispatch_model(static_cast<torch::nn::Module&>(*model.ptr()), device_map, options);
}

template <detail::ModuleHolder M>
void undo_offload(const M& model, std::optional<c10::Device> device = std::nullopt) {
  undo_offload(static_cast<torch::nn::Module&>(*model.ptr()), device);
}

template <detail::ModuleHolder M>
OffloadHook cpu_offload_with_hook(const M& model, const HookedOffloadOptions& options = {}) {
  return cpu_offload_with_hook(static_cast<torch::nn::Module&>(*model.ptr()), options);
}

}  // namespace accelerant
