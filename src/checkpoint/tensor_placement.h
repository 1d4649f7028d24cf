// Where the tensors of a model go before they are loaded, and in which type: device maps.
#pragma once

#include <string>
#include <vector>

#include "accelerant/checkpoint/models.h"
#include "checkpoint/tensor_copy.h"
#include "store/model_files.h"

namespace accelerant::checkpoint {

// Throws Error if `device_map` has no place for a tensor that the files have, or "disk" without an
// `offload_folder`. Logs a warning about tied tensors with different devices.
void require_placements(const StateDict& state, const TensorsByName& files,
                        const LoadModelOptions& options);

// The type that the tensor with these names is loaded in.
c10::ScalarType loaded_type(const std::vector<std::string>& names, const at::Tensor& tensor,
                            const LoadModelOptions& options);

// Whether the map puts the tensor with these names on "disk".
bool is_on_disk(const std::vector<std::string>& names, const DeviceMap& device_map);

// Throws Error if targets are on the meta device, where values would be lost, and no map moves them.
void require_memory(const std::vector<TensorCopy>& copies, const DeviceMap& device_map);

// Converts and moves tensors, in place, as `dtype`, `keep_in_fp32_modules` and `device_map` say.
// Tensors with several names get one place, that of the first name with one, and stay shared.
void place_tensors(const StateDict& state, const LoadModelOptions& options);

}  // namespace accelerant::checkpoint
