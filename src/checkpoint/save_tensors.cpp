#include "accelerant/checkpoint/models.h"

#include <ATen/ops/empty.h>

#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "accelerant/core/error.h"
#include "checkpoint/python_values.h"
#include "checkpoint/shared_tensors.h"
#include "checkpoint/tensor_copy.h"
#include "checkpoint/tensor_dtype.h"
#include "checkpoint/tensor_writer.h"
#include "core/atomic_file.h"
#include "core/files.h"
#include "format/torch_archive.h"
#include "store/weight_file.h"

namespace accelerant {
namespace {

using format::PlainValue;

std::vector<std::string> names_in(const StateDict& tensors) {
  std::vector<std::string> names;
  for (const auto& item : tensors) names.push_back(item.key());
  return names;
}

// Tensors of a file of torch.save; nothing if it holds anything else.
std::optional<StateDict> tensors_in(const PlainValue& content, const std::string& path) {
  StateDict tensors;
  if (content.kind() == PlainValue::Kind::tensor) {
    tensors.insert(kSingleTensorName, checkpoint::view_of(content.as_tensor(), path).clone());
    return tensors;
  }
  if (content.kind() != PlainValue::Kind::dict) return std::nullopt;
  using Memory = std::tuple<const void*, std::vector<int64_t>, std::vector<int64_t>, std::string>;
  std::map<Memory, at::Tensor> loaded;
  for (const format::PlainItem& item : content.as_dict().items) {
    if (item.key.kind() != PlainValue::Kind::string ||
        item.value.kind() != PlainValue::Kind::tensor) {
      return std::nullopt;
    }
    const format::PlainTensor& stored = item.value.as_tensor();
    const at::Tensor view = checkpoint::view_of(stored, path + ", " + item.key.as_string());
    at::Tensor tensor = view.clone();
    if (view.numel() != 0) {
      const Memory memory(view.const_data_ptr(), stored.shape, stored.strides, stored.dtype);
      tensor = loaded.try_emplace(memory, tensor).first->second;
    }
    tensors.insert(item.key.as_string(), tensor);
  }
  return tensors;
}

StateDict tensors_in(const checkpoint::WeightFile& file) {
  StateDict tensors;
  std::vector<checkpoint::TensorCopy> copies;
  for (const checkpoint::WeightTensor& stored : file.tensors()) {
    const auto type = checkpoint::archive_type(stored.dtype);
    if (!type) {
      throw Error(ErrorDetails{.problem = file.path() +
                                          " has a tensor of a type that torch does not support, '" +
                                          stored.name + "'",
                               .got = stored.dtype});
    }
    const at::Tensor tensor = at::empty(stored.shape, at::TensorOptions().dtype(*type));
    copies.push_back({&file, &stored, tensor});
    tensors.insert(stored.name, tensor);
  }
  checkpoint::read_tensors(copies);
  for (const auto& [alias, name] : file.aliases()) tensors.insert(alias, tensors[name]);
  return tensors;
}

}  // namespace

void save(const StateDict& tensors, const std::string& path, const SaveTensorsOptions& options) {
  for (const auto& item : tensors) {
    if (options.safe_serialization) {
      checkpoint::require_storable(item.key(), item.value(), std::nullopt);
    } else {
      checkpoint::require_plain(item.value(), "The tensor '" + item.key() + "'");
    }
  }
  const auto distinct = checkpoint::distinct_tensors(tensors);
  format::AtomicFile file(path);
  if (options.safe_serialization) {
    checkpoint::write_safetensors(names_in(distinct.kept), distinct.kept, distinct.aliases,
                                  std::nullopt, file);
  } else {
    checkpoint::write_archive(names_in(tensors), tensors, distinct.aliases, std::nullopt, file);
  }
  file.commit();
}

void save(const at::Tensor& tensor, const std::string& path, const SaveTensorsOptions& options) {
  if (options.safe_serialization) {
    StateDict state;
    state.insert(kSingleTensorName, tensor);
    return save(state, path, options);
  }
  const PlainValue value = checkpoint::plain_tensor(tensor, "The tensor");
  format::AtomicFile file(path);
  format::write_torch_archive(value, file);
  file.commit();
}

StateDict load_tensors(const std::string& path) {
  if (!path_exists(path)) {
    throw Error(ErrorDetails{.problem = "No such file: " + path,
                             .expected = "a file of safetensors or torch.save"});
  }
  const bool is_archive = !path.ends_with(".safetensors") &&
                          format::kind_of_archive(path) == format::ArchiveKind::python_state;
  if (!is_archive) return tensors_in(*checkpoint::open_weight_file(path));
  const PlainValue content = format::read_torch_archive(path);
  if (auto tensors = tensors_in(content, path)) return std::move(*tensors);
  throw Error(ErrorDetails{.problem = path + " contains more than tensors",
                           .expected = "a tensor or a dict of tensors by name",
                           .got = "a Python " + std::string(format::name_of(content.kind())),
                           .hint = "save only the tensors in Python"});
}

}  // namespace accelerant
