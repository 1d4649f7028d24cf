// Tensors to and from a file.
//
//   save(embeddings, "embeddings.safetensors");                                  // one tensor
//   save({{"mean", mean}, {"deviation", deviation}}, "statistics.safetensors");  // some, by name
//   save(statistics, "statistics.pt", {.safe_serialization = false});            // torch.load in Python opens it
//
//   StateDict statistics = load_tensors("statistics.safetensors");
//   at::Tensor embeddings = load_tensors("embeddings.safetensors")["tensor"];
//
// A file appears whole or not at all, and takes the place of one that is there. With several processes use
// Accelerator::save, which lets one of them write; for models there are save_model() and load_checkpoint_in_model().
#pragma once

#include <concepts>
#include <map>
#include <string>

#include "accelerant/tensor/state_dict.h"

namespace accelerant {

struct SaveTensorsOptions {
  // Writes safetensors. false: a file of torch.save, which Python opens with torch.load(weights_only=True). Default:
  // true, other than in Accelerate.
  bool safe_serialization = true;
};

// The name of a single tensor in safetensors, where each has one. In a file of torch.save it stands alone.
inline constexpr const char* kSingleTensorName = "tensor";

// Throws Error, and leaves what was there, for a tensor that cannot be stored (sparse, quantised, without data), and if
// the disk cannot be written. Names of one tensor, and only those, share their bytes in the file.
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

// All tensors of a file, on the CPU: of safetensors, of torch.save in Python (a tensor, which gets the name above, or a
// dict of tensors), or of torch::save of a module in C++. Names that share one tensor in the file do so here.
StateDict load_tensors(const std::string& path);

}  // namespace accelerant
