// Divides the parameters of a model by where they live, and plans how they come to the device.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/paging/device_map.h"
#include "accelerant/paging/offload.h"
#include "paging/mapped_file.h"
#include "paging/offload/offloaded_model.h"

namespace accelerant::paging {

// Where parameters live while nothing uses them.
struct Home {
  enum class Kind { here, host, file, device } kind = Kind::here;
  c10::Device device = c10::kCPU;  // for `device`: another one than the execution device

  bool operator==(const Home&) const = default;
};

// By the name of a parameter or buffer.
using HomeOf = std::function<Home(const std::string& name)>;

// What is to live in files: for each tensor one with its values. May write files.
using FilesOf = std::function<FileTensors(const std::vector<NamedParameter>&)>;

struct PlacementRequest {
  c10::Device execution_device = c10::kCPU;
  HomeOf home_of = {};
  FilesOf files_of = {};

  // Files with the values of tensors that stay on the device and are on the meta device. Empty: all
  // that stay must have values.
  std::optional<FileTensors> stored = std::nullopt;
  bool offload_buffers = false;
  std::optional<uint64_t> budget = std::nullopt;  // bytes; empty: the default of OffloadOptions
  int64_t prefetch = 1;
  bool zero_copy = true;
  std::vector<std::string> preload_module_classes = {};
};

// For OffloadOptions and DispatchOptions.
template <class Options>
PlacementRequest request_of(const Options& options) {
  PlacementRequest request;
  request.offload_buffers = options.offload_buffers;
  if (options.budget) request.budget = static_cast<uint64_t>(options.budget->bytes());
  request.prefetch = options.prefetch;
  request.zero_copy = options.zero_copy;
  request.preload_module_classes = options.preload_module_classes;
  return request;
}

// Parameters that come and go together, from the same place.
struct HomedUnit {
  UnitPlan plan = {};  // without a source
  Home home = {};
};

struct Division {
  std::vector<HomedUnit> units = {};
  std::vector<NamedParameter> others = {};  // parameters and buffers that stay on the device
};

// Throws Error if the module is offloaded already.
Division divide(const torch::nn::Module& module, const PlacementRequest& request);

// Throws Error if tensors lack values. Those that live in files need none, and then take what the
// files have. Changes no tensor's values or device.
OffloadPlan plan_offload(Division division, const PlacementRequest& request);

// Those of the tensors that are on the meta device.
std::vector<NamedParameter> empty_ones(const std::vector<NamedParameter>& tensors);

// Where a module computes: the wish, checked, or else a sensible default.
c10::Device execution_device_of(const torch::nn::Module& module,
                                std::optional<c10::Device> wish = std::nullopt);

// With its index. Throws Error if this machine has no such device.
c10::Device present_device(c10::Device device);

// Throws Error that tells to undo the former call.
void require_not_offloaded(const torch::nn::Module& module);

}  // namespace accelerant::paging
