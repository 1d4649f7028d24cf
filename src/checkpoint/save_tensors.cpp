#include "accelerant/checkpoint/models.h"

#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "accelerant/core/error.h"
#include "checkpoint/python_values.h"
#include "checkpoint/shared_tensors.h"
#include "checkpoint/tensor_copy.h"
#include "checkpoint/tensor_writer.h"
#include "core/atomic_file.h"
#include "core/files.h"
#include "format/torch_archive.h"
#include "store/model_checksums.h"
#include "store/model_files.h"
#include "store/weight_file.h"
#include "tensor/tensor_dtype.h"

namespace accelerant {
namespace {

using format::PlainValue;

std::vector<std::string> names_in(const StateDict& tensors) {
  std::vector<std::string> names;
  for (const auto& item : tensors) names.push_back(item.key());
  return names;
}

constexpr const char* kAllowInLoadTensors = "pass LoadTensorsOptions::allow_expanded";

// Copies tensors of a file. Refuses, unless allowed, copies that are larger than what is copied.
class HeldMemory {
 public:
  HeldMemory(const std::string& path, const LoadTensorsOptions& options)
      : path_(path), options_(options) {}

  at::Tensor copy_of(const format::PlainTensor& tensor, const std::string& where) {
    if (!options_.allow_expanded) take(tensor, where);
    const at::Tensor view = checkpoint::view_of(tensor, where, checkpoint::Expanded::allow);
    try {
      return view.clone();
    } catch (const c10::Error&) {
      return checkpoint::new_tensor(view.sizes(), view.scalar_type(), where).copy_(view);
    }
  }

 private:
  void take(const format::PlainTensor& tensor, const std::string& where) {
    format::refuse_expanded(tensor, where, kAllowInLoadTensors);
    if (storages_.insert(tensor.storage.get()).second) held_ += tensor.storage->size();
    taken_ += format::bytes_in_rows(tensor);
    format::refuse_repeated(taken_, held_, path_, where, kAllowInLoadTensors);
  }

  const std::string& path_;
  const LoadTensorsOptions& options_;
  std::set<const format::PlainStorage*> storages_;
  uint64_t held_ = 0;
  uint64_t taken_ = 0;
};

// Tensors of a file of torch.save; nothing if it holds anything else.
std::optional<StateDict> tensors_in(const PlainValue& content, const std::string& path,
                                    const LoadTensorsOptions& options) {
  StateDict tensors;
  HeldMemory held(path, options);
  if (content.kind() == PlainValue::Kind::tensor) {
    tensors.insert(kSingleTensorName, held.copy_of(content.as_tensor(), path));
    return tensors;
  }
  if (content.kind() != PlainValue::Kind::dict) return std::nullopt;
  using Memory =
      std::tuple<const void*, int64_t, std::vector<int64_t>, std::vector<int64_t>, std::string>;
  std::map<Memory, at::Tensor> loaded;
  for (const format::PlainItem& item : content.as_dict().items) {
    if (item.key.kind() != PlainValue::Kind::string ||
        item.value.kind() != PlainValue::Kind::tensor) {
      return std::nullopt;
    }
    const format::PlainTensor& stored = item.value.as_tensor();
    const std::string where = path + ": tensor '" + item.key.as_string() + "'";
    if (stored.numel() == 0) {
      tensors.insert(item.key.as_string(), held.copy_of(stored, where));
      continue;
    }
    const auto place = Memory(stored.storage.get(), stored.storage_offset, stored.shape,
                              stored.strides, stored.dtype);
    at::Tensor& tensor = loaded[place];
    if (!tensor.defined()) tensor = held.copy_of(stored, where);
    tensors.insert(item.key.as_string(), tensor);
  }
  return tensors;
}

StateDict tensors_in(const checkpoint::WeightFile& file, const LoadTensorsOptions& options) {
  if (!options.allow_expanded) file.refuse_expanded(kAllowInLoadTensors);
  StateDict tensors;
  std::vector<checkpoint::TensorCopy> copies;
  for (const checkpoint::WeightTensor& stored : file.tensors()) {
    const auto type = archive_type(stored.dtype);
    if (!type) {
      throw Error(ErrorDetails{.problem = file.path() +
                                          " has a tensor of a type that torch does not support, '" +
                                          stored.name + "'",
                               .got = stored.dtype});
    }
    const at::Tensor tensor =
        checkpoint::new_tensor(stored.shape, *type, file.path() + ": tensor '" + stored.name + "'");
    copies.push_back({&file, &stored, tensor});
    tensors.insert(stored.name, tensor);
  }
  checkpoint::read_tensors(copies);
  file.check_rest(checkpoint::reading_threads());
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
  checkpoint::forget_checksums_of(path);
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
  checkpoint::forget_checksums_of(path);
  file.commit();
}

StateDict load_tensors(const std::string& path, const LoadTensorsOptions& options) {
  if (!path_exists(path)) {
    throw Error(ErrorDetails{.problem = "No such file: " + path,
                             .expected = "a file of safetensors or torch.save"});
  }
  const int threads = checkpoint::reading_threads();
  const bool is_archive = !path.ends_with(".safetensors") &&
                          format::kind_of_archive(path) == format::ArchiveKind::python_state;
  if (!is_archive) {
    const auto file = options.checksums ? checkpoint::open_checked_file(path, threads)
                                        : checkpoint::open_weight_file(path);
    return tensors_in(*file, options);
  }
  if (options.checksums) checkpoint::check_listed_file(path, threads);
  const PlainValue content = format::read_torch_archive(path);
  if (auto tensors = tensors_in(content, path, options)) return std::move(*tensors);
  throw Error(ErrorDetails{.problem = path + " contains more than tensors",
                           .expected = "a tensor or a dict of tensors by name",
                           .got = "a Python " + std::string(format::name_of(content.kind())),
                           .hint = "save only the tensors in Python"});
}

}  // namespace accelerant
