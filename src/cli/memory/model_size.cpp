#include "cli/memory/model_size.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "accelerant/core/error.h"
#include "cli/weights/inspection.h"
#include "cli/weights/text.h"
#include "core/files.h"

namespace accelerant::cli {
namespace {

constexpr const char* kConfigName = "config.json";
constexpr std::size_t kLongestConfig = std::size_t{16} << 20;
constexpr double kMostElements = 1e16;  // beyond, numbers of bytes overflow

struct SizedTensor {
  std::string name = {};
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;
  std::size_t dimensions = 0;
  bool is_float = true;
};

bool is_float_type(const std::optional<format::DType>& type) {
  using format::DType;
  constexpr std::array kFloats = {DType::f64,         DType::f32,        DType::f16,
                                  DType::bf16,        DType::f8_e5m2,    DType::f8_e4m3,
                                  DType::f8_e5m2fnuz, DType::f8_e4m3fnuz};
  return type && std::ranges::find(kFloats, *type) != kFloats.end();
}

// Files do not tell buffers from parameters. These are the names of buffers that libraries save.
bool is_buffer_name(std::string_view name) {
  constexpr std::array<std::string_view, 7> kBufferNames = {
      "running_mean", "running_var", "inv_freq",    "masked_bias",
      "attn.bias",    "causal_mask", "position_ids"};
  return std::ranges::any_of(kBufferNames, [&](std::string_view buffer) {
    return name == buffer || name.ends_with("." + std::string(buffer));
  });
}

bool is_embedding_name(const std::string& name) {
  return name.find("embed") != std::string::npos || name.ends_with("wte.weight") ||
         name.ends_with("wpe.weight");
}

std::string parent_of(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

// "model.layers.3" of "model.layers.3.mlp.up_proj.weight": the numbered module after a name that
// lists of blocks have. BERT's embeddings are a block too. Empty if the tensor is in none.
std::string block_of(const std::string& name, const Transformer& model) {
  constexpr std::array<std::string_view, 4> kLists = {"h", "layer", "layers", "blocks"};
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = name.find('.', begin);
    if (end == std::string::npos) return "";
    const std::string_view part(name.data() + begin, end - begin);
    if (model.family == Transformer::Family::bert && part == "embeddings") {
      return name.substr(0, end);
    }
    const std::size_t after = name.find('.', end + 1);
    if (after != std::string::npos && std::ranges::find(kLists, part) != kLists.end()) {
      const std::string_view number(name.data() + end + 1, after - end - 1);
      if (!number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos) {
        return name.substr(0, after);
      }
    }
    begin = end + 1;
  }
}

// The layers of a model by name, with their elements.
std::map<std::string, std::uint64_t> layers_of(const std::vector<SizedTensor>& tensors,
                                               const std::optional<Transformer>& model) {
  std::set<std::string> with_children;
  for (const SizedTensor& tensor : tensors) {
    for (std::string module = parent_of(parent_of(tensor.name)); !module.empty();
         module = parent_of(module)) {
      with_children.insert(module);
    }
  }
  std::map<std::string, std::uint64_t> layers;
  for (const SizedTensor& tensor : tensors) {
    std::string layer = model ? block_of(tensor.name, *model) : "";
    const bool is_block = !layer.empty();
    if (!is_block) layer = parent_of(tensor.name);
    if (layer.empty()) layer = tensor.name;  // of the model itself
    // A module with children is no layer, and what it owns itself is not counted.
    if (!is_block && with_children.contains(layer)) continue;
    layers[layer] += tensor.elements;
  }
  return layers;
}

std::vector<SizedTensor> tensors_of_files(const std::string& path) {
  const Inspection found = inspect(path);
  if (!found.model_problem.empty()) throw Error(found.model_problem);
  std::vector<SizedTensor> tensors;
  for (const InspectedFile& file : found.files) {
    if (!file.in_model || !file.content) continue;
    for (const checkpoint::WeightTensor& tensor : file.content->tensors()) {
      tensors.push_back({.name = tensor.name,
                         .elements = tensor.elements(),
                         .bytes = tensor.bytes,
                         .dimensions = tensor.shape.size(),
                         .is_float = is_float_type(tensor.type)});
    }
  }
  return tensors;
}

std::vector<SizedTensor> tensors_of_config(const Transformer& model) {
  std::vector<SizedTensor> tensors;
  for (const NamedShape& shape : parameters_of(model)) {
    tensors.push_back({.name = shape.name,
                       .elements = shape.elements(),
                       .bytes = 4 * shape.elements(),
                       .dimensions = shape.shape.size()});
  }
  return tensors;
}

// Reads the config.json at a path, or beside the weights there.
void add_config(const std::string& path, ModelSize& size) {
  const bool is_config = name_of(path) == kConfigName;
  const std::string config =
      is_config ? path : join_path(is_folder(path) ? path : folder_of(path), kConfigName);
  if (!size_of_file(config)) {
    size.config_problem = "there is no config.json";
    return;
  }
  size.config = parse_transformer(read_file(config, kLongestConfig), config);
  if (size.config) return;
  size.config_problem = "config.json is of another kind of model than " + known_transformers();
}

bool has_weights(const std::string& path) {
  if (name_of(path) == kConfigName) return false;
  if (!is_folder(path)) return true;
  const auto entries = entries_of(path);
  return std::ranges::any_of(entries,
                             [](const std::string& name) {
                               return is_tensor_file_name(name) || name.ends_with(".index.json");
                             }) ||
         !path_exists(join_path(path, kConfigName));
}

void count(const std::vector<SizedTensor>& tensors, ModelSize& size) {
  double all = 0;
  for (const SizedTensor& tensor : tensors) all += static_cast<double>(tensor.elements);
  if (all > kMostElements) {
    throw Error("the model is said to have more parameters than any machine can hold");
  }
  bool has_head = false;
  for (const SizedTensor& tensor : tensors) {
    if (!tensor.is_float) {
      size.other_bytes += tensor.bytes;
      continue;
    }
    if (is_buffer_name(tensor.name)) {
      size.buffers += tensor.elements;
      continue;
    }
    size.parameters += tensor.elements;
    size.largest_parameter = std::max(size.largest_parameter, tensor.elements);
    has_head = has_head || tensor.name.ends_with("lm_head.weight");
    if (tensor.dimensions >= 2 && !is_embedding_name(tensor.name)) {
      size.matrix_elements += tensor.elements;
    }
  }
  // The embedding is the matrix of a tied head too.
  if (size.config && size.config->has_language_head && size.config->has_tied_head && !has_head) {
    size.matrix_elements += size.config->vocabulary * size.config->width;
  }
  for (const auto& [name, elements] : layers_of(tensors, size.config)) {
    if (elements < size.largest_layer) continue;
    if (elements > size.largest_layer) size.largest_layers.clear();
    size.largest_layer = elements;
    size.largest_layers.push_back(name);
  }
}

}  // namespace

ModelSize measure_model(const std::string& path) {
  require_path(path);
  ModelSize size;
  add_config(path, size);
  if (has_weights(path)) {
    size.source = "files";
    count(tensors_of_files(path), size);
  } else if (size.config) {
    size.source = "config";
    count(tensors_of_config(*size.config), size);
  } else {
    throw Error(ErrorDetails{.problem = path + " does not say how large the model is",
                             .expected = "weights, or a config.json of " + known_transformers(),
                             .got = size.config_problem,
                             .hint = "give the path of a model folder or a file of weights"});
  }
  if (size.parameters == 0) throw Error(path + " contains no parameters of a floating-point type");
  return size;
}

}  // namespace accelerant::cli
