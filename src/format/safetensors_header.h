// The header of a safetensors file: the rules that make a file valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/format/safetensors.h"
#include "format/name_index.h"

namespace accelerant::format {

inline constexpr std::size_t length_bytes = 8;
inline constexpr std::string_view metadata_key = "__metadata__";

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors = {};  // in the order of their data
  std::optional<Metadata> metadata = {};
  NameIndex index = {};
};

// The length of the header, from the first bytes of a file of `file_size` bytes. Checks that the
// file is that long. Errors call the file `label`.
std::uint64_t header_length(std::span<const std::byte> first_bytes, std::uint64_t file_size,
                            const std::string& label);

// `data_size` bytes follow the header.
SafetensorsHeader parse_header(std::string_view text, std::uint64_t data_size,
                               const std::string& label);

// Fills `target` with the bytes of a file from `position` on.
using ReadBytes = std::function<void(std::uint64_t position, std::span<std::byte> target)>;

struct ReadHeader {
  SafetensorsHeader header = {};
  std::uint64_t data_begin = 0;  // where the data begins in the file
};

// The header of a file of `file_size` bytes. Errors call the file `label`.
ReadHeader read_header(const ReadBytes& read, std::uint64_t file_size, const std::string& label);

// The name in quotes for messages: shortened, and without control characters.
std::string quoted(std::string_view name);

}  // namespace accelerant::format
