// Device maps: which part of a model lives on which GPU, in host memory or on disk.
//
//   DeviceMap map = {{"encoder", 0}, {"decoder", 1}, {"head", "cpu"}};   // by hand
//   DeviceMap map = infer_auto_device_map(net, {.max_memory = {{0, "10GiB"}, {"cpu", "30GiB"}},
//                                               .no_split_module_classes = {"Block"}});
//   DeviceMap map = make_device_map(net, "balanced");                    // over all GPUs alike
//
//   load_checkpoint_in_model(net, "llama-70b", {.device_map = map});
//
// Sizes are computed from shapes and types, so the model may be empty (paging/empty_weights.h).
// Names, order and results are those of Accelerate; docs/parity.md lists the differences.
//
// Names of classes (no_split_module_classes) are those of C++ without what is obvious: "Block" means
// Block and BlockImpl in every namespace, and all instances of a template. "nn::Linear",
// "torch::nn::Linear" and "torch::nn::LinearImpl" mean torch's own. The names are what
// torch::nn::Module::name() says.
//
// Nothing here owns or keeps a model.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerant/tensor/named_state.h"

namespace accelerant {

// --- Where something lives -----------------------------------------------------------------------

// A device of torch, or the disk.
//
//   Placement(1)         the GPU (or other accelerator) with that index
//   Placement("cpu")     also "disk", "meta", "mps", "cuda:1", and every other name of a device
//   Placement(torch::kCPU)
class Placement {
 public:
  template <std::integral Index>
  requires(!std::same_as<Index, bool>) Placement(Index index)
      : Placement(of_gpu(static_cast<int64_t>(index))) {}

  Placement(const char* name) : Placement(std::string_view(name)) {}
  Placement(const std::string& name) : Placement(std::string_view(name)) {}
  Placement(std::string_view name);
  Placement(c10::DeviceType type) : Placement(c10::Device(type)) {}
  Placement(c10::Device device) : device_(device), is_disk_(false) {}

  bool is_disk() const { return is_disk_; }
  bool is_cpu() const { return !is_disk_ && device_.is_cpu(); }

  // The index of a GPU (or other accelerator).
  std::optional<int> gpu() const;

  // Empty for the disk.
  std::optional<c10::Device> device() const;

  // As in Accelerate: "0" for a GPU, or else the name: "cpu", "disk", "meta".
  std::string text() const;

  bool operator==(const Placement&) const = default;

  // The order in which devices are filled: GPUs by index, "mps", "cpu", "disk", "meta".
  bool operator<(const Placement& other) const;

 private:
  static Placement of_gpu(int64_t index);
  int rank() const;

  c10::Device device_;
  bool is_disk_;
};

std::ostream& operator<<(std::ostream& stream, const Placement& placement);

// --- How much fits there -------------------------------------------------------------------------

// A number of bytes: an integer, or a text such as "10GiB" or "1.5GB". Units are KB, MB, GB, TB
// (powers of 1000) and KiB, MiB, GiB, TiB. As in Accelerate, a small b ("10Gb") means bits, unless
// there is an i before it.
class MemorySize {
 public:
  template <std::integral Bytes>
  requires(!std::same_as<Bytes, bool>) MemorySize(Bytes bytes)
      : bytes_(checked(static_cast<int64_t>(bytes))) {}

  MemorySize(const char* text) : MemorySize(std::string_view(text)) {}
  MemorySize(const std::string& text) : MemorySize(std::string_view(text)) {}
  MemorySize(std::string_view text);

  int64_t bytes() const { return bytes_; }

  bool operator==(const MemorySize&) const = default;

 private:
  static int64_t checked(int64_t bytes);

  int64_t bytes_;
};

// The most that a model may take on each device. The disk has no limit.
using MaxMemory = std::map<Placement, MemorySize>;

// Without limits: what is free on each GPU and in host memory (which integrated GPUs share, so then
// only theirs counts). With limits: the same limits, checked. Throws Error for devices other than
// GPUs, "mps", "cpu" and "disk". A GPU that this machine does not have is a warning.
MaxMemory get_max_memory(const MaxMemory& max_memory = {});

// --- The map -------------------------------------------------------------------------------------

// Placements by the names of modules ("encoder.layer.0") or tensors. A name also means everything
// below it, unless a longer name says otherwise; "" means the whole model. Keeps the order in which
// names were added.
class DeviceMap {
 public:
  using Entry = std::pair<std::string, Placement>;

  DeviceMap() = default;

  // Throws Error if a name occurs twice.
  DeviceMap(std::initializer_list<Entry> entries);

  // Adds a name, or changes its placement.
  void set(const std::string& name, const Placement& placement);

  // Does nothing if there is no such name.
  void erase(const std::string& name);

  // The placement of exactly that name; nullptr if there is none.
  const Placement* find(std::string_view name) const;

  // The placement of a module or tensor: that of the longest name in the map that is its own or a
  // parent's. Empty if there is none.
  std::optional<Placement> placement_of(std::string_view name) const;

  // Whether something is to live there.
  bool uses(const Placement& placement) const;

  bool empty() const { return entries_.empty(); }
  std::size_t size() const { return entries_.size(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

  // "{'encoder': 0, 'head': 'cpu'}"
  std::string text() const;

  // The order does not matter.
  friend bool operator==(const DeviceMap& a, const DeviceMap& b);

 private:
  std::vector<Entry> entries_ = {};
};

std::ostream& operator<<(std::ostream& stream, const DeviceMap& map);

// Groups modules: where everything below a module has one placement, one entry remains.
DeviceMap clean_device_map(DeviceMap device_map);

// --- Models --------------------------------------------------------------------------------------

// A model that a function looks at: a module, or the holder of one, such as torch::nn::Linear.
class ModelArgument {
 public:
  ModelArgument(const torch::nn::Module& module) : module_(module) {}

  template <detail::ModuleHolder M>
  ModelArgument(const M& holder)
      : ModelArgument(static_cast<const torch::nn::Module&>(*holder.ptr())) {}

  const torch::nn::Module& module() const { return module_; }

 private:
  const torch::nn::Module& module_;
};

// Logs a warning if the map has names that the model does not have, and throws Error if the map has
// no placement for some of the model's parameters and buffers.
void check_device_map(const ModelArgument& model, const DeviceMap& device_map);

// The names of parameters that are one tensor, or the same view of the same memory; each group is
// sorted.
std::vector<std::vector<std::string>> find_tied_parameters(const ModelArgument& model);

struct ModuleSizeOptions {
  // The type that floating-point tensors will be loaded in. It counts only where it is smaller.
  // Default: their own.
  std::optional<c10::ScalarType> dtype = std::nullopt;

  // The types of single tensors by name, which count in any case. Default: none.
  std::map<std::string, c10::ScalarType> special_dtypes = {};

  // Count buffers only. Default: parameters and buffers.
  bool buffers_only = false;
};

// The bytes of each module and tensor by name; "" is the whole model. Tied parameters count once,
// for the first name. An element of type bool counts 1/8 byte, as in Accelerate; parts of a byte
// are rounded up.
std::map<std::string, int64_t> compute_module_sizes(const ModelArgument& model,
                                                    const ModuleSizeOptions& options = {});

// The bytes of all buffers.
int64_t compute_module_total_buffer_size(const ModelArgument& model,
                                         const ModuleSizeOptions& options = {});

struct LargestLayers {
  int64_t bytes = 0;
  std::vector<std::string> names = {};  // of all layers of that size
};

// The largest layers. A layer is a module without children, one of the classes that are not to be
// split, or a tensor that the model itself holds.
LargestLayers get_max_layer_size(const ModelArgument& model,
                                 const std::vector<std::string>& no_split_module_classes = {},
                                 const ModuleSizeOptions& options = {});

// --- Making a map --------------------------------------------------------------------------------

struct BalancedMemoryOptions {
  // The most that each device may take. Default: what get_max_memory() finds; of a single GPU,
  // 90 % of that.
  MaxMemory max_memory = {};

  // Classes of modules that must stay on one device, because inputs skip parts of them. Default:
  // none.
  std::vector<std::string> no_split_module_classes = {};

  // See ModuleSizeOptions.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  std::map<std::string, c10::ScalarType> special_dtypes = {};

  // Put as little as possible on GPU 0, which then has memory for other things. Default: false.
  bool low_zero = false;
};

// Limits with which infer_auto_device_map() fills all GPUs alike, instead of one after another.
MaxMemory get_balanced_memory(const ModelArgument& model,
                              const BalancedMemoryOptions& options = {});

struct DeviceMapOptions {
  // The most that each device may take. Default: what get_max_memory() finds.
  MaxMemory max_memory = {};

  // Classes of modules that must stay on one device, because inputs skip parts of them. Default:
  // none.
  std::vector<std::string> no_split_module_classes = {};

  // See ModuleSizeOptions.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  std::map<std::string, c10::ScalarType> special_dtypes = {};

  // Log every decision, at level info. Default: false.
  bool verbose = false;

  // Group modules as clean_device_map() does. Default: true.
  bool clean_result = true;

  // Buffers of offloaded modules are offloaded too. false: they are on the GPU, and a warning says
  // so if no GPU has room for them. Default: false.
  bool offload_buffers = false;

  // If the next module does not fit on a device that has none yet, look for any other that does.
  // Default: false.
  bool fallback_allocation = false;
};

// Fills the devices one after another: GPUs, then host memory, then the disk, in the order in which
// modules are registered. A module that does not fit is divided into its children, unless its class
// is not to be split. Modules with tied parameters go together. The first GPU and the host keep room
// for the largest layer that does not live there, since layers come there to be used.
//
// A module that is divided leaves its own buffers without a placement, as in Accelerate;
// make_device_map() adds them.
DeviceMap infer_auto_device_map(const ModelArgument& model, const DeviceMapOptions& options = {});

// A map by its name in Accelerate: "auto" and "balanced" fill all GPUs alike, "balanced_low_0" all
// but GPU 0, "sequential" one after another. Every tensor of the model gets a placement.
DeviceMap make_device_map(const ModelArgument& model, const std::string& strategy,
                          const DeviceMapOptions& options = {});

// What options take: a map, or the name of a strategy.
//
//   .device_map = "auto"
//   .device_map = {{"encoder", 0}, {"", "disk"}}
class DeviceMapChoice {
 public:
  DeviceMapChoice() = default;  // none
  DeviceMapChoice(DeviceMap map) : map_(std::move(map)) {}
  DeviceMapChoice(std::initializer_list<DeviceMap::Entry> entries) : map_(entries) {}
  DeviceMapChoice(const char* strategy) : DeviceMapChoice(std::string(strategy)) {}

  // Throws Error if there is no such strategy.
  DeviceMapChoice(std::string strategy);

  // Neither a map nor a strategy was given.
  bool empty() const { return map_.empty() && strategy_.empty(); }

  // The map that was given, checked, or else one made by the strategy.
  DeviceMap resolve(const ModelArgument& model, const DeviceMapOptions& options = {}) const;

 private:
  DeviceMap map_ = {};
  std::string strategy_ = {};
};

}  // namespace accelerant
