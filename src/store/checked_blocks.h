// A file that is compared with its checksums while it is read: each block is read into memory of
// its own, and bytes are copied from there only if the checksum is right. So no damaged byte
// reaches the caller, not even if the file changes. The last blocks stay in memory: whoever reads
// on in the middle of a block rarely has to read its beginning again.
//
//   const CheckedBlocks blocks(file, path, expected, threads);
//   blocks.read(position, target);
//   blocks.check_rest(threads);   // what nobody has read
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "format/random_access_file.h"
#include "store/block_buffers.h"
#include "store/model_checksums.h"

namespace accelerant::checkpoint {

class CheckedBlocks {
 public:
  // Bytes of the file, and where they go.
  struct Part {
    std::uint64_t position = 0;
    std::span<std::byte> target = {};
  };

  // Borrows the file. Throws Error if it has another size than the list says. When damage is found,
  // at most `threads` threads look for more. `buffers` may be shared with other files.
  CheckedBlocks(const format::RandomAccessFile& file, std::string path, ListedFile expected,
                int threads,
                std::shared_ptr<BlockBuffers> buffers = std::make_shared<BlockBuffers>());

  std::uint64_t block_bytes() const { return expected_.sums.block_bytes; }

  // Fills the targets of parts that lie in this block. Thread-safe. Throws Error, which names all
  // damage in the file, if the block is damaged; the targets are unchanged then.
  void read_block(std::size_t block, std::span<const Part> parts) const;

  // Fills `target` with the bytes from `position` on. Thread-safe. Throws Error if a block that
  // holds some of them is damaged; those before it have been filled then.
  void read(std::uint64_t position, std::span<std::byte> target) const;

  // Compares the blocks that nobody has read, with at most `threads` threads. Throws Error if one
  // is damaged.
  void check_rest(int threads) const;

 private:
  [[noreturn]] void fail(std::size_t block) const;

  const format::RandomAccessFile& file_;
  const std::string path_;
  const ListedFile expected_;
  const int threads_;
  const std::unique_ptr<std::atomic<bool>[]> is_known_;  // one per block: it has been compared
  const std::shared_ptr<BlockBuffers> buffers_;
  const std::uint64_t number_;  // of this file among those that share the buffers
  mutable std::mutex failing_;
  mutable std::optional<std::string> damage_;  // of the whole file, once it has been looked for
};

}  // namespace accelerant::checkpoint
