// One file that holds tensors, in any supported format, read without torch.
//
//   const auto file = open_weight_file("model.safetensors");
//   for (const WeightTensor& tensor : file->tensors()) file->for_each_piece(tensor, use);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "accelerant/format/safetensors.h"
#include "format/plain_value.h"
#include "store/block_buffers.h"
#include "store/model_checksums.h"

namespace accelerant::checkpoint {

struct WeightTensor {
  std::string name = {};
  std::string dtype = {};                  // as the file spells it
  std::optional<format::DType> type = {};  // empty: not a type of safetensors
  std::vector<std::int64_t> shape = {};
  std::uint64_t bytes = 0;  // of its elements

  // What the file holds of it: fewer bytes than above if it is an expanded view, which repeats
  // elements.
  std::uint64_t held_bytes = 0;

  std::size_t number = 0;  // index of the tensor in its file

  std::uint64_t elements() const;
};

class WeightFile;

// Bytes of a tensor, and where they go.
struct TensorRead {
  const WeightFile* file = nullptr;
  const WeightTensor* tensor = nullptr;
  std::uint64_t offset = 0;  // in the tensor
  std::span<std::byte> target = {};
};

using UsePiece = std::function<void(std::span<const std::byte>)>;

class WeightFile {
 public:
  virtual ~WeightFile() = default;

  const std::string& path() const { return path_; }

  // In the order in which reading them is fastest.
  const std::vector<WeightTensor>& tensors() const { return tensors_; }

  // Aliases of tensors: a name not in tensors() -> a name in tensors().
  const std::map<std::string, std::string>& aliases() const { return aliases_; }

  // Whether an index lists aliases too. Safetensors files have them only in their metadata.
  virtual bool stores_aliases() const = 0;

  // Free text of the file, without entries for aliases.
  const format::Metadata& metadata() const { return metadata_; }

  // Numbers and texts beside the tensors in a torch file: path -> JSON text.
  const std::vector<std::pair<std::string, std::string>>& values() const { return values_; }

  // Python attributes of a state dict in a torch file: the versions of modules.
  const std::vector<format::PlainItem>& attributes() const { return attributes_; }

  // Whether this is a model's file: a name for each tensor and nothing else.
  bool is_weights() const { return other_content_.empty(); }

  // What else the file contains: "a Python list under the name 'x'".
  const std::string& other_content() const { return other_content_; }

  // "safetensors" or "torch".
  virtual const char* format() const = 0;

  // Copies as many bytes of a tensor as `target` has, in row-major order, starting at `offset`.
  // Thread-safe.
  virtual void read(const WeightTensor& tensor, std::uint64_t offset,
                    std::span<std::byte> target) const = 0;

  // Splits reads of this file into tasks that may run at the same time if no targets overlap, and
  // appends them in their order: pieces of `piece` bytes, or blocks with checksums.
  virtual void plan(const std::vector<TensorRead>& reads, std::size_t piece,
                    std::vector<std::function<void()>>& tasks) const;

  // If the file is compared with its checksums while it is read: compares what nobody has read,
  // with at most `threads` threads. Throws Error for damage.
  virtual void check_rest(int /*threads*/) const {}

  // The same file for whoever uses its bytes in place: what was opened, also if another file has its
  // name by now. Null if it is no safetensors file. Nothing is compared with checksums.
  virtual std::shared_ptr<const format::SafetensorsFile> map() const { return nullptr; }

  // Calls `use` with the bytes of a tensor, in row-major order, piece by piece. Each piece holds
  // whole elements.
  void for_each_piece(const WeightTensor& tensor, const UsePiece& use) const;

  // Throws Error, naming the tensor, if one is an expanded view, or if all of them take many times
  // what the file holds. Whoever writes or allocates what a file describes needs this: a file of
  // 500 bytes may describe terabytes. `remedy` says how to allow it.
  void refuse_expanded(const std::string& remedy) const;
  void refuse_expanded(const WeightTensor& tensor, const std::string& remedy) const;

  // Reads everything; throws Error for damaged data.
  virtual void check() const = 0;

 protected:
  explicit WeightFile(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::vector<WeightTensor> tensors_;
  std::uint64_t held_bytes_ = 0;  // of all tensors; shared memory counts once
  std::map<std::string, std::string> aliases_;
  format::Metadata metadata_;
  std::vector<std::pair<std::string, std::string>> values_;
  std::vector<format::PlainItem> attributes_;
  std::string other_content_;
};

// Opens a safetensors file, a file of Python's torch.save, or a module saved by C++'s torch::save,
// of which it takes the tensors. The name of the file does not matter, but it must be a regular
// file. Throws Error for anything else, also if the memory does not suffice.
std::unique_ptr<WeightFile> open_weight_file(const std::string& path);

// The same with checksums. A file named *.safetensors is compared while it is read: opening
// compares its header, read() every block before it copies from it, and check_rest() the rest. Of
// other files opening compares everything. All of them throw Error for damage, which at most
// `threads` threads look for. What is compared is what was opened, also if another file takes its
// name meanwhile. Files that are read together may share `buffers`.
std::unique_ptr<WeightFile> open_weight_file(
    const std::string& path, const ListedFile& expected, int threads,
    std::shared_ptr<BlockBuffers> buffers = std::make_shared<BlockBuffers>());

// Which file has this name: another text once it was replaced or written to; empty for none.
std::string identity_of_file(const std::string& path);

// Opens the second and third of these.
std::unique_ptr<WeightFile> open_torch_file(const std::string& path);

}  // namespace accelerant::checkpoint
