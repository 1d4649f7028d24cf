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
  explicit ArchiveModelFile(const std::string& path) : TensorFile(path) {
    const PlainValue content = format::read_torch_archive(path);
    if (content.kind() != PlainValue::Kind::dict) refuse(content, "");
    for (const format::PlainItem& item : content.as_dict().items) {
      if (item.key.kind() != PlainValue::Kind::string) refuse(item.key, " as a key");
      if (item.value.kind() != PlainValue::Kind::tensor) {
        refuse(item.value, " under the name '" + item.key.as_string() + "'");
      }
      const format::PlainTensor& tensor = item.value.as_tensor();
      const auto type = format::dtype_from_name(tensor.dtype);
      tensors_.push_back({.name = item.key.as_string(),
                          .type = type ? torch_dtype(*type) : std::nullopt,
                          .type_name = tensor.dtype,
                          .shape = tensor.shape});
      contents_.emplace(item.key.as_string(), tensor);
    }
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
      return std::make_unique<ArchiveModelFile>(path);
    case format::ArchiveKind::torchscript_or_cpp:
      throw Error(ErrorDetails{.problem = path + " is not a file of weights",
                               .expected = "safetensors, or a file of Python's torch.save",
                               .got = "an archive of TorchScript, or of torch::save in C++",
                               .hint = "load it with torch::load or torch::jit::load"});
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
