// A file that appears whole or not at all.
//
//   AtomicFile file("model.safetensors");
//   writer.write(file);
//   file.commit();          // now the file is there, whole and on the disk
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "accelerant/core/detail/byte_sink.h"

namespace accelerant::format {

// What is written goes to a new file in the same folder, which takes the place of the old one by
// renaming. A file that is open or mapped elsewhere keeps its old content there.
//
// Destroying an AtomicFile that was not committed removes what was written; the old file stays.
class AtomicFile final : public ByteSink {
 public:
  // Throws Error if no file can be made in the folder of `path`.
  explicit AtomicFile(std::string path);
  ~AtomicFile() override;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes) override;

  // Brings the bytes to the disk, renames the file and brings the change of the folder to the disk.
  // Once only; nothing can be written afterwards.
  void commit();

 private:
  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;  // closed when it was committed
};

}  // namespace accelerant::format
