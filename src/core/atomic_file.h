// A file that appears complete or not at all.
//
//   AtomicFile file("model.safetensors");
//   writer.write(file);
//   file.commit();          // now the complete file is on the disk
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "accelerant/core/detail/byte_sink.h"
#include "accelerant/core/detail/own_process.h"

namespace accelerant::format {

// Bytes go to a new file in the same folder, which commit() renames over the old one. Whoever has
// the old file open or mapped keeps seeing its old content.
//
// Destroying an uncommitted AtomicFile removes what was written and keeps the old file.
class AtomicFile final : public ByteSink {
 public:
  // Throws Error if no file can be created in the folder of `path`.
  explicit AtomicFile(std::string path);
  ~AtomicFile() override;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes) override;

  // Syncs the bytes to the disk, renames the file and syncs the folder. Call it once; nothing can
  // be written afterwards.
  void commit();

 private:
  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;  // -1 after commit()
  accelerant::detail::OwnProcess process_;
};

}  // namespace accelerant::format
