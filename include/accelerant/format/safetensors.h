// Reads and writes safetensors files, without torch: a program can inspect and copy tensors of types
// that its libtorch does not know.
//
//   auto file = SafetensorsFile::open("model.safetensors");
//   for (const TensorInfo& tensor : file.tensors()) { ... tensor.name, tensor.shape ... }
//   std::span<const std::byte> bytes = file.view("lm_head.weight");   // no copy
//   file.read_slice("embed.weight", {{.begin = 0, .end = 1000}}, target);   // the first 1000 rows
//
//   std::vector<TensorToWrite> tensors;
//   tensors.push_back({.name = "weight", .dtype = DType::f32, .shape = {2, 3}, .data = bytes});
//   tensors.push_back({.name = "large", .dtype = DType::bf16, .shape = {n},
//                      .produce = [&](ByteSink& sink) { ... sink.write(piece) ... }});
//   save_safetensors("model.safetensors", std::move(tensors), Metadata{{"format", "pt"}});
//
// Opening reads and checks the header; tensors are read on request. A file is accepted only if all
// of it is valid, by the rules of the reference implementation and some stricter ones: no duplicate
// names, no sizes that overflow beside a zero, at most 64 dimensions. Nothing in a file can make
// the reader allocate more than a small multiple of the header's true size.
//
// A SafetensorsFile owns the open file and the mapping. It can be moved but not copied. Views stay
// valid as long as the object lives, even after a move. All const methods are thread-safe.
//
// The bytes in a file are little-endian and may not be aligned for their type: copy elements out of
// a view with memcpy unless the address happens to be aligned.
//
// Files are written byte for byte like those of the reference implementation. Tensors are laid out
// by type and name, so equal tensors give equal files in whatever order they are passed, and every
// tensor is aligned for its type. Everything is checked before the first byte is written: names
// (UTF-8, unique, not "__metadata__"), sizes, the length of the header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/core/detail/byte_sink.h"

namespace accelerant::format {

// The element types of safetensors files.
//
//   dtype_name(DType::bf16);       // "BF16", as in the header of a file
//   dtype_bits(DType::f6_e2m3);    // 6: some types are smaller than a byte
//   byte_size(DType::f4, shape);   // empty if the shape does not fill whole bytes, or is too large
//
// In the order of the reference implementation, which is by alignment: a writer puts the last ones
// first.
enum class DType : std::uint8_t {
  boolean,      // BOOL, one byte
  f4,           // F4 (E2M1), two in a byte
  f6_e2m3,      // F6_E2M3, four in three bytes
  f6_e3m2,      // F6_E3M2, four in three bytes
  u8,           // U8
  i8,           // I8
  f8_e5m2,      // F8_E5M2
  f8_e4m3,      // F8_E4M3, torch's float8_e4m3fn
  f8_e8m0,      // F8_E8M0, a scale: exponent only
  f8_e4m3fnuz,  // F8_E4M3FNUZ
  f8_e5m2fnuz,  // F8_E5M2FNUZ
  i16,          // I16
  u16,          // U16
  f16,          // F16
  bf16,         // BF16
  i32,          // I32
  u32,          // U32
  f32,          // F32
  c64,          // C64, two F32
  f64,          // F64
  i64,          // I64
  u64,          // U64
};

inline constexpr std::size_t dtype_count = 22;

// Every type, in the order above.
std::array<DType, dtype_count> all_dtypes();

// The name in files, for example "F32".
std::string_view dtype_name(DType dtype);

// The type with that name; empty if there is none. Case matters.
std::optional<DType> dtype_from_name(std::string_view name);

// The size of one element, in bits.
unsigned dtype_bits(DType dtype);

// Why a shape has no size in bytes.
enum class SizeProblem {
  negative,   // a dimension below zero
  overflow,   // too many elements to count, even if another dimension is zero
  misaligned  // the elements do not fill whole bytes
};

// The size of a tensor in bytes; empty if there is none. `problem`, if given, then says why.
std::optional<std::uint64_t> byte_size(DType dtype, std::span<const std::int64_t> shape,
                                       SizeProblem* problem = nullptr);

// The free text of a file, its entry "__metadata__".
using Metadata = std::map<std::string, std::string>;

// The largest header a file may have, in bytes.
inline constexpr std::uint64_t largest_header = 100'000'000;

// The most dimensions a tensor may have.
inline constexpr std::size_t largest_rank = 64;

// What a file's header says about a tensor.
struct TensorInfo {
  std::string name = {};                 // any UTF-8 text: never use it as a path
  DType dtype = DType::f32;              // type of an element
  std::vector<std::int64_t> shape = {};  // row-major; empty for a scalar
  std::uint64_t begin = 0;               // first byte, counted from the end of the header
  std::uint64_t end = 0;                 // one past the last byte

  std::uint64_t bytes() const { return end - begin; }

  bool operator==(const TensorInfo&) const = default;
};

// A part of one dimension: the elements from `begin` up to, but not including, `end`.
struct DimRange {
  static constexpr std::int64_t to_the_end = std::numeric_limits<std::int64_t>::max();

  std::int64_t begin = 0;         // from 0 to the size of the dimension
  std::int64_t end = to_the_end;  // from `begin` to the size of the dimension, or to_the_end
};

enum class FileAccess {
  map,   // the file is mapped: view() works. The file must not shrink meanwhile: touching bytes
         // that are gone ends the process
  read,  // nothing is mapped: only the read functions work
};

struct OpenOptions {
  // How bytes are accessed. Default: mapped. The read functions do not use the mapping: they throw
  // Error if the file has shrunk since it was opened.
  FileAccess access = FileAccess::map;
};

class RandomAccessFile;

class SafetensorsFile {
 public:
  // Throws Error, which names the file, the tensor and the reason, if the file cannot be read or is
  // not a valid safetensors file.
  static SafetensorsFile open(const std::string& path, const OpenOptions& options = {});

  // The same for a file that the library has open: for that very file, also if another one has its
  // name by now.
  static SafetensorsFile open(const RandomAccessFile& file, const OpenOptions& options = {});

  // The same for a file in memory, which is borrowed: it must outlive the result. Errors call the
  // file `label`.
  static SafetensorsFile parse(std::span<const std::byte> bytes, std::string label = "memory");

  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  // The tensors in the order of their data, which is the fastest order to read them in.
  const std::vector<TensorInfo>& tensors() const;

  // Their names, in the same order.
  std::vector<std::string_view> names() const;

  // The tensor with that name. If there is none, find() returns nullptr and info() throws Error.
  const TensorInfo* find(std::string_view name) const;
  const TensorInfo& info(std::string_view name) const;

  // The file's free text; empty if it has none.
  const Metadata& metadata() const;

  // Whether the file has an entry for free text, even an empty one.
  bool has_metadata() const;

  // The path, or the label.
  const std::string& label() const;

  // The bytes of a tensor, without a copy. Throws Error if the file was opened with
  // FileAccess::read.
  std::span<const std::byte> view(std::string_view name) const;

  // Copies a tensor to `target`, which must have exactly its size.
  void read(std::string_view name, std::span<std::byte> target) const;

  // Copies as many bytes of a tensor as `target` has, starting at `offset`. For tensors that go
  // through a small buffer, for example on the way to a GPU.
  void read_part(std::string_view name, std::uint64_t offset, std::span<std::byte> target) const;

  // Copies a part of a tensor to `target`, whose size must be exactly slice_bytes(). Give one range
  // per dimension, from the first; missing ones mean the whole dimension. Throws Error for ranges
  // outside the tensor, and for parts that do not begin and end at whole bytes (F4 and F6).
  void read_slice(std::string_view name, const std::vector<DimRange>& ranges,
                  std::span<std::byte> target) const;
  std::vector<std::int64_t> slice_shape(std::string_view name,
                                        const std::vector<DimRange>& ranges) const;
  std::uint64_t slice_bytes(std::string_view name, const std::vector<DimRange>& ranges) const;

 private:
  struct State;
  explicit SafetensorsFile(std::unique_ptr<const State> state);

  void copy(std::uint64_t position, std::span<std::byte> target) const;

  std::unique_ptr<const State> state_;
};

struct TensorToWrite {
  // Any UTF-8 text except "__metadata__".
  std::string name = {};

  // The type of an element.
  DType dtype = DType::f32;

  // Row-major; empty for a scalar.
  std::vector<std::int64_t> shape = {};

  // The bytes, little-endian; exactly as many as shape and dtype need. Borrowed until written.
  std::span<const std::byte> data = {};

  // Alternatively, a function that writes these bytes to the sink when their turn comes, in pieces
  // of any size, so a tensor on a GPU need not be copied whole. Called once per write().
  std::function<void(ByteSink& sink)> produce = {};
};

class SafetensorsWriter {
 public:
  // Plans the file and checks everything; throws Error, which names the tensor. Without `metadata`
  // the file has no metadata entry; with an empty one it has an empty entry.
  explicit SafetensorsWriter(std::vector<TensorToWrite> tensors,
                             const std::optional<Metadata>& metadata = std::nullopt);

  // The size of the resulting file, in bytes.
  std::uint64_t file_size() const { return file_size_; }

  // The tensors as they will be laid out in the file.
  std::vector<TensorInfo> layout() const;

  // Writes the file. Throws Error if a `produce` writes more or fewer bytes than its tensor has;
  // the sink has then received part of the file.
  void write(ByteSink& sink) const;

 private:
  std::vector<TensorToWrite> tensors_;  // in the order of the file
  std::vector<std::uint64_t> sizes_;    // their sizes in bytes
  std::string header_;                  // preceded by its length
  std::uint64_t file_size_ = 0;
};

// Writes a file that appears complete or not at all. After an Error, an existing file of that name
// is unchanged.
void save_safetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                      const std::optional<Metadata>& metadata = std::nullopt);

}  // namespace accelerant::format
