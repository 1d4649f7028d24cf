#include "store/weight_file.h"

#include <algorithm>
#include <array>
#include <new>

#include "accelerant/core/error.h"
#include "accelerant/format/safetensors.h"
#include "core/files.h"
#include "core/texts.h"
#include "format/plain_tensor.h"
#include "format/random_access_file.h"
#include "format/safetensors_header.h"
#include "format/torch_archive.h"

namespace accelerant::checkpoint {
namespace {

constexpr std::uint64_t kPiece = 4 << 20;

// Whether a file with another name may still be a safetensors file: its header begins after eight
// bytes.
bool begins_like_safetensors(const std::string& path) {
  const format::RandomAccessFile file(path);
  std::array<std::byte, 9> beginning = {};
  if (file.size() < beginning.size()) return false;
  file.read(0, beginning);
  return beginning.back() == std::byte{'{'};
}

class SafetensorsWeights final : public WeightFile {
 public:
  explicit SafetensorsWeights(const std::string& path)
      : WeightFile(path),
        // Read instead of mapped: bytes go straight to their destination, and a file that shrinks
        // is an Error.
        file_(format::SafetensorsFile::open(path, {.access = format::FileAccess::read})) {
    tensors_.reserve(file_.tensors().size());
    for (const format::TensorInfo& info : file_.tensors()) {
      tensors_.push_back({.name = info.name,
                          .dtype = std::string(format::dtype_name(info.dtype)),
                          .type = info.dtype,
                          .shape = info.shape,
                          .bytes = info.bytes(),
                          .held_bytes = info.bytes(),
                          .number = tensors_.size()});
      held_bytes_ += info.bytes();
    }
    for (const auto& [key, value] : file_.metadata()) {
      // Python's safetensors writes aliases into the metadata, beside free text.
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
  bool stores_aliases() const override { return false; }

  void read(const WeightTensor& tensor, std::uint64_t offset,
            std::span<std::byte> target) const override {
    file_.read_part(tensor.name, offset, target);
  }

  void check() const override {
    for (const WeightTensor& tensor : tensors_) for_each_piece(tensor, [](auto) {});
  }

 private:
  format::SafetensorsFile file_;
};

}  // namespace

std::uint64_t WeightTensor::elements() const {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

void WeightFile::for_each_piece(const WeightTensor& tensor, const UsePiece& use) const {
  std::vector<std::byte> buffer(std::min(kPiece, tensor.bytes));
  for (std::uint64_t offset = 0; offset < tensor.bytes; offset += buffer.size()) {
    const std::span piece(buffer.data(), std::min(kPiece, tensor.bytes - offset));
    read(tensor, offset, piece);
    use(piece);
  }
}

void WeightFile::refuse_expanded(const WeightTensor& tensor, const std::string& remedy) const {
  format::refuse_expanded(tensor.bytes, tensor.held_bytes, tensor.shape,
                          path_ + ": tensor " + format::quoted(tensor.name), remedy);
}

void WeightFile::refuse_expanded(const std::string& remedy) const {
  std::uint64_t bytes = 0;
  for (const WeightTensor& tensor : tensors_) {
    refuse_expanded(tensor, remedy);
    bytes += tensor.bytes;
    format::refuse_repeated(bytes, held_bytes_, path_, "tensor " + format::quoted(tensor.name),
                            remedy);
  }
}

namespace {

std::unique_ptr<WeightFile> open_by_content(const std::string& path) {
  if (path.ends_with(".safetensors")) return std::make_unique<SafetensorsWeights>(path);
  const bool says_torch = path.ends_with(".bin") || path.ends_with(".pt") || path.ends_with(".pth");
  const bool is_torch = format::kind_of_archive(path) != format::ArchiveKind::not_an_archive;
  if (is_torch || (says_torch && !begins_like_safetensors(path))) return open_torch_file(path);
  return std::make_unique<SafetensorsWeights>(path);  // or throws what is wrong with it
}

}  // namespace

std::unique_ptr<WeightFile> open_weight_file(const std::string& path) {
  try {
    return open_by_content(path);
  } catch (const std::bad_alloc&) {
    throw Error(ErrorDetails{
        .problem = path + " cannot be read: its list of tensors does not fit into the memory",
        .got = "a file of " + counted(size_of_file(path).value_or(0), "byte")});
  }
}

}  // namespace accelerant::checkpoint
