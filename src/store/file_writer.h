// Writes one file of a checkpoint: in large pieces, with a checksum, and durably.
//
//   FileWriter file("checkpoint_3.tmp/model.safetensors");
//   file.write(bytes);
//   FileRecord record = file.finish();   // now it survives a crash of the machine
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "accelerant/core/detail/byte_sink.h"
#include "core/fd.h"
#include "store/background_checksums.h"
#include "store/checksum.h"
#include "store/file_record.h"
#include "store/model_checksums.h"

namespace accelerant::checkpoint {

// What a FileWriter computes while it writes: one checksum of the file, one for each block of it, or
// none.
enum class SumUp { yes, blocks, no };

class FileWriter final : public format::ByteSink {
 public:
  // Creates a new file; throws Error if it exists. With another choice than SumUp::yes the record's
  // checksum is 0.
  explicit FileWriter(const std::string& path, SumUp sum_up = SumUp::yes);

  // An unfinished file is left as it is, in a folder that does not count.
  ~FileWriter() override;

  // After an Error the file accepts no more bytes and cannot be finished: there would be a gap.
  void write(std::span<const std::byte> bytes) override;

  // Writes buffered bytes, waits for the disk and closes the file.
  FileRecord finish();

  // The same with SumUp::blocks.
  FileChecksums finish_blocks();

 private:
  void flush();
  void put(std::span<const std::byte> bytes);
  std::size_t put_piece(std::span<const std::byte> bytes);

  std::string path_;
  SumUp sum_up_;
  Fd file_;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t buffered_ = 0;
  std::uint64_t size_ = 0;
  Checksum checksum_;
  BackgroundChecksums blocks_ = BackgroundChecksums(kChecksumBlock);
};

}  // namespace accelerant::checkpoint
