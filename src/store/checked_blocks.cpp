#include "store/checked_blocks.h"

#include <algorithm>
#include <utility>

#include "accelerant/core/error.h"
#include "format/stream_copy.h"
#include "store/checksum.h"
#include "store/parallel_reads.h"

namespace accelerant::checkpoint {

CheckedBlocks::CheckedBlocks(const format::RandomAccessFile& file, std::string path,
                             ListedFile expected, int threads,
                             std::shared_ptr<BlockBuffers> buffers)
    : file_(file),
      path_(std::move(path)),
      expected_(std::move(expected)),
      threads_(threads),
      is_known_(new std::atomic<bool>[expected_.sums.blocks.size()]()),
      buffers_(std::move(buffers)),
      number_(buffers_->new_file()) {
  if (const auto fault = other_size(path_, file.size(), expected_)) throw Error(*fault);
}

void CheckedBlocks::read_block(std::size_t block, std::span<const Part> parts) const {
  const std::uint64_t begin = block * block_bytes();
  const BlockBuffers::Content wanted = {.file = number_, .block = block};
  BlockBuffers::Buffer buffer = buffers_->take(wanted, std::min(block_bytes(), file_.size()));
  const auto content = buffer.memory.bytes().first(std::min(block_bytes(), file_.size() - begin));
  if (buffer.content != wanted) {
    file_.read(begin, content);
    if (checksum_of(content) != expected_.sums.blocks[block]) fail(block);
    buffer.content = wanted;
    is_known_[block] = true;
  }
  for (const Part& part : parts) {
    format::stream_copy(part.target, content.subspan(part.position - begin, part.target.size()));
  }
  buffers_->give_back(std::move(buffer));
}

void CheckedBlocks::read(std::uint64_t position, std::span<std::byte> target) const {
  while (!target.empty()) {
    const std::uint64_t block = position / block_bytes();
    const auto part = target.first(
        std::min<std::uint64_t>(target.size(), (block + 1) * block_bytes() - position));
    const Part parts[] = {{.position = position, .target = part}};
    read_block(block, parts);
    position += part.size();
    target = target.subspan(part.size());
  }
}

void CheckedBlocks::check_rest(int threads) const {
  std::vector<std::size_t> rest;
  for (std::size_t block = 0; block < expected_.sums.blocks.size(); ++block) {
    if (!is_known_[block]) rest.push_back(block);
  }
  run_in_parallel(rest.size(), threads, [&](std::size_t i) { read_block(rest[i], {}); });
}

// Looks at the whole file, so that the Error does not depend on which thread was first. Only once:
// of a damaged file every thread may get here.
void CheckedBlocks::fail(std::size_t block) const {
  const std::lock_guard lock(failing_);
  if (!damage_) damage_ = damage_in(file_, path_, expected_, threads_).value_or("");
  if (!damage_->empty()) throw Error(*damage_);
  throw Error(
      ErrorDetails{.problem = path_ + " changes while it is read",
                   .expected = "the same bytes in block " + std::to_string(block) + " every time",
                   .hint = "replace files by renaming a new one over them"});
}

}  // namespace accelerant::checkpoint
