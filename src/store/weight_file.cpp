#include "store/weight_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "accelerant/core/error.h"
#include "accelerant/format/safetensors.h"
#include "core/files.h"
#include "core/texts.h"
#include "format/plain_tensor.h"
#include "format/random_access_file.h"
#include "format/safetensors_header.h"
#include "format/torch_archive.h"
#include "store/checked_blocks.h"

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
  explicit SafetensorsWeights(const std::string& path, const ListedFile* expected = nullptr,
                              int threads = 1, std::shared_ptr<BlockBuffers> buffers = {})
      : WeightFile(path), file_(path) {
    if (expected != nullptr) {
      blocks_.emplace(file_, path, *expected, threads, std::move(buffers));
    }
    auto [header, data_begin] = format::read_header(
        [&](std::uint64_t position, auto target) { read_bytes(position, target); }, file_.size(),
        path);
    header_ = std::move(header);
    data_begin_ = data_begin;
    tensors_.reserve(header_.tensors.size());
    for (const format::TensorInfo& info : header_.tensors) {
      tensors_.push_back({.name = info.name,
                          .dtype = std::string(format::dtype_name(info.dtype)),
                          .type = info.dtype,
                          .shape = info.shape,
                          .bytes = info.bytes(),
                          .held_bytes = info.bytes(),
                          .number = tensors_.size()});
      held_bytes_ += info.bytes();
    }
    if (!header_.metadata) return;
    const auto is_tensor = [&](const std::string& name) {
      return header_.index.find(header_.tensors, name).has_value();
    };
    for (const auto& [key, value] : *header_.metadata) {
      // Python's safetensors writes aliases into the metadata, beside free text.
      if (key != "format" && !is_tensor(key) && is_tensor(value)) {
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
    require_inside(tensor, offset, target.size());
    read_bytes(position_of(tensor) + offset, target);
  }

  void plan(const std::vector<TensorRead>& reads, std::size_t piece,
            std::vector<std::function<void()>>& tasks) const override {
    if (!blocks_) return WeightFile::plan(reads, piece, tasks);
    std::map<std::uint64_t, std::vector<CheckedBlocks::Part>> parts;  // by block
    for (const TensorRead& read : reads) {
      require_inside(*read.tensor, read.offset, read.target.size());
      std::uint64_t position = position_of(*read.tensor) + read.offset;
      for (auto rest = read.target; !rest.empty();) {
        const std::uint64_t block = position / blocks_->block_bytes();
        const auto part = rest.first(
            std::min<std::uint64_t>(rest.size(), (block + 1) * blocks_->block_bytes() - position));
        parts[block].push_back({.position = position, .target = part});
        position += part.size();
        rest = rest.subspan(part.size());
      }
    }
    for (auto& [block, of_block] : parts) {
      tasks.emplace_back([this, block = block, of_block = std::move(of_block)] {
        blocks_->read_block(block, of_block);
      });
    }
  }

  void check_rest(int threads) const override {
    if (blocks_) blocks_->check_rest(threads);
  }

  std::shared_ptr<const format::SafetensorsFile> map() const override {
    return std::make_shared<const format::SafetensorsFile>(format::SafetensorsFile::open(file_));
  }

  void check() const override {
    for (const WeightTensor& tensor : tensors_) for_each_piece(tensor, [](auto) {});
  }

 private:
  std::uint64_t position_of(const WeightTensor& tensor) const {
    return data_begin_ + header_.tensors[tensor.number].begin;
  }

  void require_inside(const WeightTensor& tensor, std::uint64_t offset, std::uint64_t size) const {
    if (offset <= tensor.bytes && size <= tensor.bytes - offset) return;
    throw Error(ErrorDetails{
        .problem =
            path_ + ": tensor " + format::quoted(tensor.name) + ": the part is outside the tensor",
        .expected = "at most " + counted(tensor.bytes, "byte"),
        .got = counted(size, "byte") + " from byte " + std::to_string(offset) + " on"});
  }

  // Read instead of mapped: a file that shrinks is an Error.
  void read_bytes(std::uint64_t position, std::span<std::byte> target) const {
    if (blocks_) {
      blocks_->read(position, target);
    } else {
      file_.read(position, target);
    }
  }

  format::RandomAccessFile file_;
  std::optional<CheckedBlocks> blocks_;
  format::SafetensorsHeader header_;
  std::uint64_t data_begin_ = 0;
};

}  // namespace

std::uint64_t WeightTensor::elements() const {
  std::uint64_t count = 1;
  for (const std::int64_t size : shape) count *= static_cast<std::uint64_t>(size);
  return count;
}

void WeightFile::plan(const std::vector<TensorRead>& reads, std::size_t piece,
                      std::vector<std::function<void()>>& tasks) const {
  for (const TensorRead& read : reads) {
    for (std::size_t done = 0; done < read.target.size(); done += piece) {
      const auto part = read.target.subspan(done, std::min(piece, read.target.size() - done));
      tasks.emplace_back([this, tensor = read.tensor, offset = read.offset + done, part] {
        this->read(*tensor, offset, part);
      });
    }
  }
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

// What `open` opens; for lack of memory an Error.
std::unique_ptr<WeightFile> open_within_memory(
    const std::string& path, const std::function<std::unique_ptr<WeightFile>()>& open) {
  try {
    return open();
  } catch (const std::bad_alloc&) {
    throw Error(ErrorDetails{
        .problem = path + " cannot be read: its list of tensors does not fit into the memory",
        .got = "a file of " + counted(size_of_file(path).value_or(0), "byte")});
  }
}

}  // namespace

std::string identity_of_file(const std::string& path) {
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return "";
  return std::to_string(status.st_dev) + " " + std::to_string(status.st_ino) + " " +
         std::to_string(status.st_mtim.tv_sec) + "." + std::to_string(status.st_mtim.tv_nsec);
}

std::unique_ptr<WeightFile> open_weight_file(const std::string& path) {
  return open_within_memory(path, [&] { return open_by_content(path); });
}

std::unique_ptr<WeightFile> open_weight_file(const std::string& path, const ListedFile& expected,
                                             int threads, std::shared_ptr<BlockBuffers> buffers) {
  if (path.ends_with(".safetensors") && path_exists(path)) {
    return open_within_memory(path, [&]() -> std::unique_ptr<WeightFile> {
      return std::make_unique<SafetensorsWeights>(path, &expected, threads, std::move(buffers));
    });
  }
  while (true) {
    const std::string before = identity_of_file(path);
    if (const auto damage = damage_of(path, expected.sums, expected.list, threads)) {
      throw Error(*damage);
    }
    auto file = open_weight_file(path);
    if (identity_of_file(path) == before) return file;  // else another one was compared
  }
}

}  // namespace accelerant::checkpoint
