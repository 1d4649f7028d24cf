// Units whose bytes are in host memory while they are absent, as one block with the unit's own
// layout: one copy brings it in.
#pragma once

#include <string>

#include "paging/source.h"

namespace accelerant::paging {

class HostMemory final : public Source {
 public:
  // `block`: bytes on the CPU, laid out as the unit; pinned if the unit goes to an accelerator.
  // Shared, not copied.
  explicit HostMemory(at::Tensor block);

  // Uninitialised memory for a unit that goes to `device`.
  static at::Tensor allocate(const UnitLayout& layout, c10::Device device);

  const at::Tensor& block() const { return block_; }

  std::string describe() const override { return "host memory"; }
  void check(const UnitLayout& layout) const override;
  std::optional<LentMemory> lend(const UnitLayout& layout) override;
  void fetch(const UnitLayout& layout, const at::Tensor& block) override;
  bool is_asynchronous() const override { return true; }
  Writes writes() const override { return Writes::stored; }
  void store(const UnitLayout& layout, const at::Tensor& block) override;

 private:
  at::Tensor block_;
};

}  // namespace accelerant::paging
