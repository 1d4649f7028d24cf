#include "checkpoint/tensor_file.h"

#include <cstring>
#include <unordered_map>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/format/safetensors_file.h"
#include "accelerant/format/torch_archive.h"
#include "checkpoint/tensor_dtype.h"

namespace accelerant::checkpoint {
namespace {

using format::PlainValue;

class SafetensorsModelFile final : public TensorFile {
 public:
  explicit SafetensorsModelFile(const std::string& path)
      : TensorFile(path),
        // Read rather than mapped: bytes go straight to where they belong, and a file that shrinks is an Error.
        file_(format::SafetensorsFile::open(path, {.access = format::FileAccess::read})) {
    for (const format::TensorInfo& info : file_.tensors()) {
      tensors_.push_back({.name = info.name,
                          .type = torch_dtype(info.dtype),
                          .type_name = std::string(format::dtype_name(info.dtype)),
                          .shape = info.shape});
    }
    for (const auto& [key, value] : file_.metadata()) {
      // As Python's safetensors writes them, beside free text.
      if (file_.find(key) == nullptr && file_.find(value) != nullptr) aliases_.emplace(key, value);
    }
  }

  void read(const StoredTensor& tensor, uint64_t offset, std::span<std::byte> target) override {
    file_.read_part(tensor.name, offset, target);
  }

 private:
  format::SafetensorsFile file_;
};

class ArchiveModelFile final : public TensorFile {
 public:
  // Of Python's torch.save: a dict of tensors.
  static std::unique_ptr<TensorFile> of_python(const std::string& path) {
    std::unique_ptr<ArchiveModelFile> file(new ArchiveModelFile(path));
    const PlainValue content = format::read_torch_archive(path);
    if (content.kind() != PlainValue::Kind::dict) file->refuse(content, "");
    for (const format::PlainItem& item : content.as_dict().items) {
      if (item.key.kind() != PlainValue::Kind::string) file->refuse(item.key, " as a key");
      if (item.value.kind() != PlainValue::Kind::tensor) {
        file->refuse(item.value, " under the name '" + item.key.as_string() + "'");
      }
      file->add(item.key.as_string(), item.value.as_tensor());
    }
    return file;
  }

  // Of torch::save in C++, or of TorchScript: the tensors of a module and of those in it.
  static std::unique_ptr<TensorFile> of_module(const std::string& path) {
    std::unique_ptr<ArchiveModelFile> file(new ArchiveModelFile(path));
    file->add_all(format::read_module_archive(path), "");
    return file;
  }

  void read(const StoredTensor& tensor, uint64_t offset, std::span<std::byte> target) override {
    if (rows_of_ != tensor.name) {
      rows_of_.reset();  // the buffer is about to change, and that may fail
      rows_ = format::row_major_bytes(contents_.at(tensor.name), buffer_);
      rows_of_ = tensor.name;
    }
    std::memcpy(target.data(), rows_.subspan(offset, target.size()).data(), target.size());
  }

 private:
  using TensorFile::TensorFile;

  void add(const std::string& name, const format::PlainTensor& tensor) {
    tensors_.push_back({.name = name,
                        .type = archive_type(tensor.dtype),
                        .type_name = tensor.dtype,
                        .shape = tensor.shape});
    contents_.emplace(name, tensor);
  }

  void add_all(const PlainValue& module, const std::string& prefix) {
    if (module.kind() == PlainValue::Kind::tensor) add(prefix, module.as_tensor());
    // Other attributes, as whether it was training, are no weights.
    if (module.kind() != PlainValue::Kind::dict) return;
    for (const format::PlainItem& item : module.as_dict().items) {
      if (item.key.kind() != PlainValue::Kind::string) continue;
      add_all(item.value,
              prefix.empty() ? item.key.as_string() : prefix + "." + item.key.as_string());
    }
  }

  [[noreturn]] void refuse(const PlainValue& value, const std::string& where) const {
    throw Error(
        ErrorDetails{.problem = path_ + " is not a saved model",
                     .expected = "a dict of tensors, as in torch.save(model.state_dict(), path)",
                     .got = "a Python " + std::string(format::name_of(value.kind())) + where});
  }

  std::unordered_map<std::string, format::PlainTensor> contents_;
  // The tensor that was read last, whose rows may have had to be gathered.
  std::optional<std::string> rows_of_;
  std::span<const std::byte> rows_;
  std::vector<std::byte> buffer_;
};

}  // namespace

std::unique_ptr<TensorFile> open_tensor_file(const std::string& path) {
  if (path.ends_with(".safetensors")) return std::make_unique<SafetensorsModelFile>(path);
  switch (format::kind_of_archive(path)) {
    case format::ArchiveKind::python_state:
      return ArchiveModelFile::of_python(path);
    case format::ArchiveKind::torchscript_or_cpp:
      return ArchiveModelFile::of_module(path);
    case format::ArchiveKind::legacy:
      throw Error(ErrorDetails{.problem = path + " is in the old format of torch.save",
                               .expected = "safetensors, or a file of torch.save since torch 1.6",
                               .hint = "load and save it once more in Python"});
    case format::ArchiveKind::not_an_archive:
      break;
  }
  return std::make_unique<SafetensorsModelFile>(path);  // which says what is wrong with it
}

}  // namespace accelerant::checkpoint
