// Units whose bytes are in the memory of another device than the one that computes: a second GPU.
#pragma once

#include <memory>
#include <string>

#include "paging/unit.h"

namespace accelerant::paging {

class PeerMemory final : public Source {
 public:
  explicit PeerMemory(at::Tensor block) : block_(std::move(block)) {}

  // With the present values of a unit's parameters.
  static std::shared_ptr<Source> holding(const UnitPlan& unit, c10::Device device);

  std::string describe() const override { return "the memory of " + block_.device().str(); }
  void check(const UnitLayout& layout) const override;
  void fetch(const UnitLayout& layout, const at::Tensor& block) override;
  bool is_asynchronous() const override { return !block_.is_cpu(); }
  Writes writes() const override { return Writes::stored; }
  void store(const UnitLayout& layout, const at::Tensor& block) override;

 private:
  at::Tensor block_;  // bytes, laid out as the unit
};

}  // namespace accelerant::paging
