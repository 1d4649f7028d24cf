// Local SGD, like accelerate.LocalSGD: every process takes several steps on its own, without
// exchanging gradients; then the parameters are averaged over all processes.
//
//   dist::LocalSgd local_sgd(world, model.parameters(), {.steps = 8}, no_exchange);
//   for (auto&& [data, target] : loader) {
//     ...
//     optimizer.step();
//     local_sgd.step();
//   }
//   local_sgd.finish();
//
// All processes must call step() equally often. Only parameters are averaged, not buffers or the
// state of an optimizer. With one process nothing happens. The World is shared as long as it is
// used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "accelerant/core/detail/own_process.h"

namespace accelerant::dist {

class World;

// Replaces each tensor by its mean over the processes, in place. Every process must pass tensors of
// the same shapes and types in the same order. They travel together, in one exchange per type and
// device (more above 256 MiB). Means of 16-bit tensors are computed in float32. With one process
// nothing happens.
void average_parameters(const World& world, const std::vector<at::Tensor>& parameters);

struct LocalSgdOptions {
  // The number of calls of step() between two averages. Default: 8.
  int64_t steps = 8;

  // If false, gradients are exchanged as usual and nothing is averaged. Default: true.
  bool enabled = true;
};

class [[nodiscard]] LocalSgd {
 public:
  // Stops the exchange of gradients as long as the object it returns lives.
  using StopExchange = std::function<std::shared_ptr<void>()>;

  LocalSgd(std::shared_ptr<World> world, std::vector<at::Tensor> parameters,
           const LocalSgdOptions& options = {}, const StopExchange& stop_exchange = {});

  // Calls finish(), unless an exception is leaving the scope: the other processes may then not be
  // there to average with. Errors of finish() are only logged here; call it yourself to get them.
  ~LocalSgd();
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  // Call it after each batch. Averages at every `steps`-th call.
  void step();

  // Averages a last time and resumes the exchange of gradients. Calls after the first do nothing.
  void finish();

  // Whether it is enabled, there are several processes, and finish() was not called.
  bool is_active() const { return is_active_; }

  int64_t num_steps() const { return num_steps_; }

 private:
  std::shared_ptr<World> world_;
  std::vector<at::Tensor> parameters_;
  int64_t steps_;
  int64_t num_steps_ = 0;
  bool is_active_;
  int exceptions_at_entry_;
  std::shared_ptr<void> exchange_stopped_;
  accelerant::detail::OwnProcess process_;
};

}  // namespace accelerant::dist
