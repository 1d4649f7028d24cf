#include "store/weight_file.h"

#include <algorithm>
#include <array>
#include <fstream>

#include "accelerant/format/safetensors_file.h"
#include "format/torch_archive.h"

namespace accelerant::checkpoint {
namespace {

constexpr std::uint64_t kPiece = 4 << 20;

// Whether a file with another name may still be a safetensors file: its header begins after eight
// bytes.
bool begins_like_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 9> beginning = {};
  file.read(beginning.data(), beginning.size());
  return file.good() && beginning.back() == '{';
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
                          .number = tensors_.size()});
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

std::unique_ptr<WeightFile> open_weight_file(const std::string& path) {
  if (path.ends_with(".safetensors")) return std::make_unique<SafetensorsWeights>(path);
  const bool says_torch = path.ends_with(".bin") || path.ends_with(".pt") || path.ends_with(".pth");
  const bool is_torch = format::kind_of_archive(path) != format::ArchiveKind::not_an_archive;
  if (is_torch || (says_torch && !begins_like_safetensors(path))) return open_torch_file(path);
  return std::make_unique<SafetensorsWeights>(path);  // or throws what is wrong with it
}

}  // namespace accelerant::checkpoint
