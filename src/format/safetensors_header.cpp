#include "format/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "accelerant/core/error.h"
#include "format/json_scanner.h"

namespace accelerant::format {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr const char* damaged_hint = "the file is damaged or not a safetensors file";

std::string number_text(std::uint64_t number) { return std::to_string(number); }

class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& label) : json_(text), label_(label) {}

  SafetensorsHeader parse() {
    json_.begin_object();
    std::string key;
    while (json_.next_key(key)) {
      if (key == metadata_key) {
        read_metadata();
      } else {
        read_tensor(std::move(key));
      }
    }
    json_.end();
    return std::move(header_);
  }

 private:
  void read_metadata() {
    if (has_metadata_) json_.fail("'__metadata__' occurs twice");
    has_metadata_ = true;
    if (json_.null()) return;
    Metadata& metadata = header_.metadata.emplace();
    json_.begin_object();
    std::string key;
    std::string value;
    while (json_.next_key(key)) {
      json_.string(value);
      // Most programs write keys in order, so the end is the right place to look first.
      const std::size_t before = metadata.size();
      const auto added = metadata.emplace_hint(metadata.end(), std::move(key), std::move(value));
      if (metadata.size() == before) {
        json_.fail("the key " + quoted(added->first) + " of '__metadata__' occurs twice");
      }
      key.clear();
      value.clear();
    }
  }

  void read_tensor(std::string name) {
    TensorInfo& tensor = header_.tensors.emplace_back();
    tensor.name = std::move(name);
    bool has_dtype = false;
    bool has_shape = false;
    bool has_offsets = false;
    const auto first = [&](bool& seen) {
      if (seen) fail(tensor, "the field '" + key_ + "' occurs twice");
      seen = true;
    };
    json_.begin_object();
    while (json_.next_key(key_)) {
      if (key_ == "dtype") {
        first(has_dtype);
        read_dtype(tensor);
      } else if (key_ == "shape") {
        first(has_shape);
        read_shape(tensor);
      } else if (key_ == "data_offsets") {
        first(has_offsets);
        read_offsets(tensor);
      } else {
        json_.skip_value();
      }
    }
    if (!has_dtype) fail(tensor, "the field 'dtype' is missing");
    if (!has_shape) fail(tensor, "the field 'shape' is missing");
    if (!has_offsets) fail(tensor, "the field 'data_offsets' is missing");
  }

  void read_dtype(TensorInfo& tensor) {
    json_.string(value_);
    const std::optional<DType> dtype = dtype_from_name(value_);
    if (!dtype) fail(tensor, "unknown dtype " + quoted(value_));
    tensor.dtype = *dtype;
  }

  void read_shape(TensorInfo& tensor) {
    std::size_t rank = 0;
    json_.begin_array();
    while (json_.next_element()) {
      const std::uint64_t size = json_.unsigned_integer();
      if (rank == largest_rank) {
        fail(tensor, "more than " + number_text(largest_rank) + " dimensions");
      }
      if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        fail(tensor, "the dimension " + number_text(size) + " is larger than 2^63-1");
      }
      sizes_[rank++] = static_cast<std::int64_t>(size);
    }
    tensor.shape.assign(sizes_, sizes_ + rank);
  }

  void read_offsets(TensorInfo& tensor) {
    json_.begin_array();
    for (std::uint64_t* const offset : {&tensor.begin, &tensor.end}) {
      if (!json_.next_element()) fail(tensor, "'data_offsets' has fewer than two entries");
      *offset = json_.unsigned_integer();
    }
    if (json_.next_element()) fail(tensor, "'data_offsets' has more than two entries");
  }

  [[noreturn]] void fail(const TensorInfo& tensor, const std::string& reason) const {
    throw Error(ErrorDetails{.problem = label_ + ": tensor " + quoted(tensor.name) + ": " + reason,
                             .expected = {},
                             .got = {},
                             .hint = damaged_hint});
  }

  JsonScanner json_;
  const std::string& label_;
  SafetensorsHeader header_{};
  bool has_metadata_ = false;
  // Kept between tensors, because there may be a million of them.
  std::string key_{};
  std::string value_{};
  std::int64_t sizes_[largest_rank] = {};
};

// By the order of the data; tensors that begin at the same place keep the order of the header.
void sort_by_offset(std::vector<TensorInfo>& tensors) {
  const auto place = [](const TensorInfo& tensor) { return std::pair(tensor.begin, tensor.end); };
  const auto before = [&](const TensorInfo& a, const TensorInfo& b) { return place(a) < place(b); };
  if (std::is_sorted(tensors.begin(), tensors.end(), before)) return;

  // Sorting small keys and moving each tensor once is faster than sorting tensors.
  struct Key {
    std::uint64_t begin, end;
    std::size_t index;
    auto operator<=>(const Key&) const = default;
  };
  std::vector<Key> keys;
  keys.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) keys.push_back({tensor.begin, tensor.end, keys.size()});
  std::sort(keys.begin(), keys.end());
  std::vector<TensorInfo> sorted;
  sorted.reserve(tensors.size());
  for (const Key& key : keys) sorted.push_back(std::move(tensors[key.index]));
  tensors = std::move(sorted);
}

[[noreturn]] void refuse(const std::string& label, const TensorInfo& tensor, std::string problem,
                         std::string expected, std::string got) {
  throw Error(ErrorDetails{.problem = label + ": tensor " + quoted(tensor.name) + ": " + problem,
                           .expected = std::move(expected),
                           .got = std::move(got),
                           .hint = damaged_hint});
}

void check_size(const TensorInfo& tensor, const std::string& label) {
  SizeProblem problem{};
  const std::optional<std::uint64_t> bytes = byte_size(tensor.dtype, tensor.shape, &problem);
  const std::string dtype(dtype_name(tensor.dtype));
  if (!bytes && problem == SizeProblem::misaligned) {
    refuse(label, tensor, "its elements of type " + dtype + " do not fill whole bytes", {}, {});
  }
  if (!bytes) refuse(label, tensor, "its shape has too many elements of type " + dtype, {}, {});
  if (*bytes != tensor.bytes()) {
    refuse(label, tensor, "the size of its data does not match its shape and type " + dtype,
           number_text(*bytes) + " bytes", number_text(tensor.bytes()));
  }
}

// The tensors must fill the data without holes and without overlaps.
void check_layout(const std::vector<TensorInfo>& tensors, std::uint64_t data_size,
                  const std::string& label) {
  std::uint64_t position = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin != position) {
      refuse(label, tensor,
             tensor.begin > position ? "there is a hole before its data"
                                     : "its data overlaps that of another tensor",
             "data that begins at " + number_text(position), number_text(tensor.begin));
    }
    if (tensor.end < tensor.begin) {
      refuse(label, tensor, "its data ends before it begins",
             "an end of at least " + number_text(tensor.begin), number_text(tensor.end));
    }
    check_size(tensor, label);
    position = tensor.end;
  }
  if (position == data_size) return;
  throw Error(ErrorDetails{
      .problem = label + (position < data_size ? ": there are bytes after the last tensor"
                                               : ": the file is too short for its tensors"),
      .expected = number_text(position) + " bytes of data",
      .got = number_text(data_size),
      .hint =
          position < data_size ? damaged_hint : "the file is incomplete; copy or save it again"});
}

}  // namespace

std::string quoted(std::string_view name) {
  constexpr std::size_t longest = 120;
  const bool is_cut = name.size() > longest;
  if (is_cut) {
    // Do not cut inside a character.
    std::size_t length = longest;
    while (length > 0 && (static_cast<unsigned char>(name[length]) & 0xC0U) == 0x80) --length;
    name = name.substr(0, length);
  }
  std::string text;
  append_json_string(text, name);
  text.front() = text.back() = '\'';
  return is_cut ? text + "..." : text;
}

std::uint64_t header_length(std::span<const std::byte> first_bytes, std::uint64_t file_size,
                            const std::string& label) {
  if (file_size < length_bytes) {
    throw Error(ErrorDetails{.problem = label + ": the file is too short for a safetensors file",
                             .expected = "at least 8 bytes",
                             .got = number_text(file_size),
                             .hint = "the file is incomplete; copy or save it again"});
  }
  std::uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), length_bytes);
  if (length > largest_header) {
    throw Error(ErrorDetails{.problem = label + ": the header is too long",
                             .expected = "at most " + number_text(largest_header) + " bytes",
                             .got = number_text(length),
                             .hint = damaged_hint});
  }
  if (length > file_size - length_bytes) {
    throw Error(
        ErrorDetails{.problem = label + ": the header is longer than the file",
                     .expected = "at most " + number_text(file_size - length_bytes) + " bytes",
                     .got = number_text(length),
                     .hint = damaged_hint});
  }
  return length;
}

SafetensorsHeader parse_header(std::string_view text, std::uint64_t data_size,
                               const std::string& label) {
  SafetensorsHeader header;
  try {
    header = HeaderParser(text, label).parse();
  } catch (const JsonRefusal& refusal) {
    throw Error(ErrorDetails{.problem = label + ": the header cannot be parsed at byte " +
                                        number_text(refusal.position) + ": " + refusal.what(),
                             .expected = {},
                             .got = {},
                             .hint = damaged_hint});
  }
  sort_by_offset(header.tensors);
  header.index = NameIndex(header.tensors);
  if (const auto twice = header.index.duplicate(header.tensors)) {
    refuse(label, header.tensors[*twice], "the name occurs twice", {}, {});
  }
  check_layout(header.tensors, data_size, label);
  return header;
}

ReadHeader read_header(const ReadBytes& read, std::uint64_t file_size, const std::string& label) {
  std::byte first_bytes[length_bytes] = {};
  if (file_size >= length_bytes) read(0, first_bytes);
  const std::uint64_t length = header_length(first_bytes, file_size, label);
  const std::uint64_t data_begin = length_bytes + length;
  try {
    // A copy, even if the file is mapped: what was checked must not change afterwards.
    std::string text(length, '\0');
    read(length_bytes, std::as_writable_bytes(std::span(text)));
    return {.header = parse_header(text, file_size - data_begin, label), .data_begin = data_begin};
  } catch (const std::bad_alloc&) {
    throw Error(ErrorDetails{.problem = label + ": the header does not fit into the memory",
                             .got = number_text(length) + " bytes"});
  }
}

}  // namespace accelerant::format
