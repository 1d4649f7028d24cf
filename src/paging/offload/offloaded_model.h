// A model whose parameters come and go, from the call that offloaded it to its undoing.
//
// Every parameter carries a reference to it. It ends with the last of them, so a program that drops
// its model drops the memory and the files too, and needs no handle.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paging/attachment.h"
#include "paging/mapped_file.h"
#include "paging/pager.h"

namespace accelerant::paging {

struct OffloadPlan {
  std::vector<UnitPlan> units = {};         // what comes and goes
  std::vector<NamedParameter> others = {};  // parameters and buffers that are on the device
  PagerOptions pager = {};

  // For those of `others` that are on the meta device, by the first of their names.
  FileTensors values = {};
};

class OffloadedModel : public std::enable_shared_from_this<OffloadedModel> {
 public:
  // Carries the plan out, or throws and changes nothing.
  static std::shared_ptr<OffloadedModel> attach(OffloadPlan plan);

  // Those whose parameters or buffers the module has.
  static std::vector<std::shared_ptr<OffloadedModel>> of(const torch::nn::Module& module);

  // Parameters and buffers of the module that came and went, and do not any more, although nobody
  // called undo().
  static std::vector<std::string> strays_of(const torch::nn::Module& module);

  OffloadedModel(const OffloadedModel&) = delete;
  OffloadedModel& operator=(const OffloadedModel&) = delete;

  const Pager& pager() const { return *pager_; }

  void undo(std::optional<c10::Device> device);

  // Frees the memory on the device, if anything was used since the last time. What is in use stays,
  // and goes the next time.
  void leave_device();

  // Notes a use, see leave_device().
  void note_use() { is_used_.store(true, std::memory_order_relaxed); }

 private:
  struct Moved {
    WeakTensor tensor;
    c10::Device origin;
  };

  OffloadedModel() = default;

  void sign(const at::Tensor& tensor, bool wanders);
  void unsign();

  std::unique_ptr<Pager> pager_;  // null once undone
  std::vector<Moved> moved_;      // others, that were elsewhere
  std::vector<WeakTensor> signed_;
  std::atomic<bool> is_used_ = false;
};

}  // namespace accelerant::paging
