// The parameters of a prepared model in host memory, if AcceleratorOptions::offload.parameters: they
// come to the device for the operators that use them, within a budget.
//
// The loop tells where iterations begin, so that parameters come ahead of their use: a training
// step begins with its first forward and ends where the next one begins, its update included; an
// evaluation is one forward.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "paging/pager.h"

namespace torch::nn {
class Module;
}

namespace accelerant::detail {

class PagedModel {
 public:
  // Large parameters are paged, all others and the buffers move to the device. Throws Error and
  // changes nothing if that is impossible. Without a budget: room for the unit in use, the one
  // before it, and the next one.
  PagedModel(const torch::nn::Module& module, c10::Device device, std::optional<uint64_t> budget);

  // Whether the model does not fit into the budget as a whole. Without a budget, none does.
  static bool is_needed(const torch::nn::Module& module, std::optional<uint64_t> budget);

  // A forward begins. `backwards`: how many have run so far.
  void begin_forward(bool trains, bool completes_window, int64_t backwards);

  paging::Pager& pager() { return *pager_; }

 private:
  std::unique_ptr<paging::Pager> pager_;
  std::unique_ptr<paging::Pager::Iteration> iteration_;  // null before the first
  int64_t backwards_ = -1;  // at the beginning of the iteration; -1: an evaluation
};

// For tests: the CPU plays a device of its own.
bool& pages_on_every_device();

// Whether the parameters of a module come and go already, by the program's own doing.
bool has_paged_parameters(const std::vector<at::Tensor>& parameters);

}  // namespace accelerant::detail
