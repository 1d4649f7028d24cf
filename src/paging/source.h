// Where the bytes of a unit come from and go to.
//
// A unit (unit.h) is a group of parameters whose memory comes and goes together. While it is
// absent, its bytes are somewhere else: in host memory (host_memory.h), in a file that is mapped
// (mapped_file.h), in parts on several processes. That place is the unit's Source.
//
//   class Gathered final : public Source {                     // a source of one's own
//    public:
//     std::string describe() const override { return "shards of 8 processes"; }
//     void fetch(const UnitLayout&, const at::Tensor& block) override { all_gather(block, shard_); }
//     Writes writes() const override { return Writes::refused; }
//   };
//
// A Source is used by one unit, never by two threads at once. The Pager calls it without holding a
// lock, so it may take as long as it needs, and may run operators of ATen.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace accelerant::paging {

// One storage of a unit: the memory of one parameter, or of several that share it.
struct UnitPart {
  // The parameters in this storage; the first one stands for it in messages. Tied parameters are
  // one parameter with several names.
  std::vector<std::string> names = {};

  c10::ScalarType dtype = c10::ScalarType::Float;  // of the first parameter
  std::vector<int64_t> sizes = {};                 // of the first parameter
  bool is_whole = true;    // the first parameter is contiguous and fills the storage
  std::size_t offset = 0;  // in the unit's block, in bytes; a multiple of `block_alignment`
  std::size_t bytes = 0;   // of the storage
};

// Suits every kernel: CUDA's allocator aligns its memory the same way.
inline constexpr std::size_t block_alignment = 512;

// What a storage of so many bytes takes in a block.
inline constexpr std::size_t aligned_for_block(std::size_t bytes) {
  return (bytes + block_alignment - 1) / block_alignment * block_alignment;
}

// How the parameters of a unit lie in its block.
struct UnitLayout {
  std::string name = {};  // for messages
  std::vector<UnitPart> parts = {};
  std::size_t bytes = 0;  // of the block, gaps included
};

// What becomes of changes to a unit's parameters, for example by an optimizer.
enum class Writes {
  stored,   // store() takes them when the unit is evicted
  kept,     // the source cannot take them: from then on the unit's bytes live in host memory
  refused,  // operators that write to a parameter throw Error
};

// A source's own memory, which operators use directly.
struct LentMemory {
  std::vector<void*> parts = {};     // one address per part of the layout, aligned for its type
  bool is_writable = false;          // if not, the unit is copied before the first write
  std::shared_ptr<void> owner = {};  // keeps it alive; may be null if the source does
};

class Source {
 public:
  virtual ~Source() = default;

  // For messages: "host memory", "model.safetensors".
  virtual std::string describe() const = 0;

  // Called once, when a Pager attaches. Throws Error if the source does not have what the layout
  // needs, so that it is found out before the first use.
  virtual void check(const UnitLayout& layout) const;

  // The unit's bytes, if they lie in memory that operators can use, so that nothing need be copied.
  // A unit in lent memory is always resident and does not count towards the budget. Only called for
  // units on the CPU, and, unlike the other functions, under a lock: it must not wait.
  virtual std::optional<LentMemory> lend(const UnitLayout& layout);

  // Fills a block: bytes on the unit's device, `layout.bytes` of them, uninitialised. On an
  // accelerator the Pager's own stream is current: copies are queued there, and the function may
  // return before they are done. If it throws, the operator that needed the unit throws the same,
  // and the next one tries again.
  virtual void fetch(const UnitLayout& layout, const at::Tensor& block) = 0;

  // Whether fetch() only queues work. If not, units are prefetched by a thread.
  virtual bool is_asynchronous() const { return false; }

  virtual Writes writes() const { return Writes::kept; }

  // Takes changed bytes back, under the same rules as fetch(). Only called if writes() is `stored`.
  virtual void store(const UnitLayout& layout, const at::Tensor& block);
};

}  // namespace accelerant::paging
