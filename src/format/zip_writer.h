// Writes a zip archive laid out exactly as torch's own writer does: records stored, data at
// multiples of 64 bytes, sizes and checksums after the data, 64-bit numbers where needed.
// torch.load may compute where a record lies instead of looking it up (calculate_storage_offsets),
// so the layout is part of the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerant/core/detail/byte_sink.h"

namespace accelerant::format {

class ZipWriter {
 public:
  // Borrows the sink. `folder` and a '/' precede all names.
  ZipWriter(ByteSink& sink, std::string folder);

  void add(std::string_view name, std::span<const std::byte> bytes);
  void add(std::string_view name, std::string_view text);

  // A record whose bytes are made when their turn comes. Throws Error, after writing part of the
  // archive, unless `produce` gives the sink exactly `size` bytes.
  void add(std::string_view name, uint64_t size,
           const std::function<void(ByteSink& sink)>& produce);

  // Writes the directory. Nothing may be added after it.
  void finish();

 private:
  struct Entry {
    std::string name;
    uint64_t offset;
    uint64_t size;
    uint32_t checksum;
  };

  void write(std::string_view bytes);
  void write_end(uint64_t directory_offset, uint64_t directory_size);

  ByteSink& sink_;
  std::string folder_;
  uint64_t written_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace accelerant::format
