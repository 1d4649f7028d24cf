#include "cli/weights/weight_files.h"

#include <algorithm>
#include <set>

#include "accelerant/core/error.h"
#include "accelerant/format/safetensors_file.h"
#include "accelerant/format/shard_index.h"
#include "accelerant/format/torch_archive.h"
#include "checkpoint/model_folder.h"
#include "core/files.h"

namespace accelerant::cli {
namespace {

constexpr std::uint64_t kPiece = 4 << 20;

class SafetensorsWeights final : public WeightFile {
 public:
  explicit SafetensorsWeights(const std::string& path)
      : WeightFile(path),
        // Read rather than mapped: a file that shrinks is an Error.
        file_(format::SafetensorsFile::open(path, {.access = format::FileAccess::read})) {
    for (const format::TensorInfo& info : file_.tensors()) {
      tensors_.push_back({.name = info.name,
                          .dtype = std::string(format::dtype_name(info.dtype)),
                          .type = info.dtype,
                          .shape = info.shape,
                          .bytes = info.bytes(),
                          .number = tensors_.size()});
    }
    for (const auto& [key, value] : file_.metadata()) {
      // As Python's safetensors writes them, beside free text.
      const bool is_alias =
          key != "format" && file_.find(key) == nullptr && file_.find(value) != nullptr;
      if (is_alias) {
        aliases_.emplace(key, value);
      } else {
        metadata_.emplace(key, value);
      }
    }
  }

  const char* format() const override { return "safetensors"; }

  void for_each_piece(const WeightTensor& tensor, const UsePiece& use) const override {
    std::vector<std::byte> buffer(std::min(kPiece, tensor.bytes));
    for (std::uint64_t offset = 0; offset < tensor.bytes; offset += buffer.size()) {
      const std::span piece(buffer.data(), std::min(kPiece, tensor.bytes - offset));
      file_.read_part(tensor.name, offset, piece);
      use(piece);
    }
  }

  std::span<const std::byte> view(const WeightTensor& tensor,
                                  std::vector<std::byte>& buffer) const override {
    buffer.resize(tensor.bytes);
    file_.read(tensor.name, buffer);
    return buffer;
  }

  void check() const override {
    for (const WeightTensor& tensor : tensors_) for_each_piece(tensor, [](auto) {});
  }

 private:
  format::SafetensorsFile file_;
};

// Every tensor in the file that the index names for it, and no other.
void require_as_indexed(const WeightFile& file, std::set<std::string> expected,
                        const std::string& index) {
  std::string faults;
  const auto see = [&](const std::string& name) {
    if (expected.erase(name) == 0) faults += "\n  only in the file: " + name;
  };
  for (const WeightTensor& tensor : file.tensors()) see(tensor.name);
  // A safetensors file stores them only in its metadata, and no index has them.
  const bool is_torch = std::string_view(file.format()) == "torch";
  for (const auto& [alias, kept] : file.aliases()) {
    if (is_torch) see(alias);
  }
  for (const std::string& name : expected) faults += "\n  only in the index: " + name;
  if (faults.empty()) return;
  throw Error(file.path() + " is not what " + index + " says:" + faults +
              "\n  Download or save the model again.");
}

std::unique_ptr<WeightFile> open_weights_of_model(const std::string& path) {
  auto file = open_weight_file(path);
  if (file->is_weights()) return file;
  throw Error(
      ErrorDetails{.problem = path + " is not a saved model",
                   .expected = "a dict of tensors, as in torch.save(model.state_dict(), path)",
                   .got = "a file with other things",
                   .hint = "`accelerant inspect` shows what is in it"});
}

WeightFiles open_indexed(const std::string& index_path, const std::string& folder) {
  std::map<std::string, std::set<std::string>> by_file;
  for (const auto& [tensor, file] : format::read_shard_index(index_path).weight_map) {
    by_file[file].insert(tensor);
  }
  WeightFiles files;
  for (auto& [name, tensors] : by_file) {
    const auto path = checkpoint::find_model_file(folder, name);
    if (!path) {
      throw Error(
          ErrorDetails{.problem = "A file of the model is missing",
                       .expected = join_path(folder, name) + ", which " + index_path + " names",
                       .hint = "download or save the model again"});
    }
    files.push_back(open_weights_of_model(*path));
    require_as_indexed(*files.back(), std::move(tensors), index_path);
  }
  return files;
}

}  // namespace

std::uint64_t WeightTensor::elements() const {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

std::unique_ptr<WeightFile> open_weight_file(const std::string& path) {
  if (!path.ends_with(".safetensors") &&
      format::kind_of_archive(path) != format::ArchiveKind::not_an_archive) {
    return open_torch_file(path);
  }
  const bool says_torch = path.ends_with(".bin") || path.ends_with(".pt") || path.ends_with(".pth");
  if (says_torch) return open_torch_file(path);  // which says what is wrong with it
  return std::make_unique<SafetensorsWeights>(path);
}

WeightFiles open_model(const std::string& path) {
  const std::string folder = is_folder(path) ? path : folder_of(path);
  const std::string name = is_folder(path) ? checkpoint::main_model_file(path) : name_of(path);
  const std::string found =
      checkpoint::find_model_file(folder, name).value_or(join_path(folder, name));
  if (name.ends_with(".json")) return open_indexed(found, folder);
  WeightFiles files;
  files.push_back(open_weights_of_model(found));
  return files;
}

}  // namespace accelerant::cli
