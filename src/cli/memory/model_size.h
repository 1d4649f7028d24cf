// What the parameters of a model need: from its files, from its config.json, or from both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/memory/transformer.h"

namespace accelerant::cli {

// A layer is what Accelerate never splits: a module without children, or a block of a transformer.
struct ModelSize {
  std::string source = {};                       // "files" or "config"
  std::optional<Transformer> config = {};        // empty: no config.json, or of an unknown kind
  std::string config_problem = {};               // why it is empty
  std::uint64_t parameters = 0;                  // elements that are trained
  std::uint64_t buffers = 0;                     // elements that are not, of floating-point types
  std::uint64_t other_bytes = 0;                 // of tensors of other types
  std::uint64_t matrix_elements = 0;             // of weights that autocast copies to 16 bits
  std::uint64_t largest_parameter = 0;           // elements
  std::uint64_t largest_layer = 0;               // elements of parameters and buffers
  std::vector<std::string> largest_layers = {};  // their names; several of the same size
};

// The size of the model at a path: a folder, a file of weights, an index, or a config.json. A
// UsageError if nothing is there, an Error if it is no model.
ModelSize measure_model(const std::string& path);

}  // namespace accelerant::cli
