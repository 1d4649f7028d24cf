// What graphs need from a prepared optimizer whose step they contain.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "accelerator/prepared/optimizer_state.h"

namespace accelerant::detail {

// Borrows the optimizer; create one where you need it.
class GraphedOptimizer {
 public:
  explicit GraphedOptimizer(OptimizerState& optimizer) : optimizer_(optimizer) {}

  // The optimizer is about to step. Refuses the capture if it steps on the host: a graph would
  // freeze the numbers that the host computes (step counts, learning rates, skipping).
  void refuse_step_on_host() const;

  // Changes when captured graphs become stale. 0 if it has not stepped on the device in its current
  // form.
  uint64_t fingerprint() const;

  // A graph with its step is about to be captured or replayed: copies what has changed on the host
  // to the device.
  void prepare_replay() const;

  // A graph with its step is about to be captured: allocates the memory that the graph works with,
  // on the current stream.
  void begin_capture() const;

  // The step was captured, which has changed nothing on the device. Returns the memory that the
  // graph works with, and queues on the current stream what must come before a replay.
  std::vector<at::Tensor> end_capture() const;

  // Kernels of a graph have written to gradients without autograd's knowledge.
  void note_gradients_written() const;
  void note_parameters_written() const;

 private:
  OptimizerState& optimizer_;
};

}  // namespace accelerant::detail
