// What graphs with the step of a prepared optimizer need of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "accelerator/prepared/optimizer_state.h"

namespace accelerant::detail {

// Borrows the optimizer, and is made where it is used.
class GraphedOptimizer {
 public:
  explicit GraphedOptimizer(OptimizerState& optimizer) : optimizer_(optimizer) {}

  // It is about to step: on the host a graph could not hold that, as numbers that the host computes
  // (step counts, learning rates, skipping) stay in it what they were.
  void refuse_step_on_host() const;

  // Changes when captured graphs become stale. 0: it has not stepped on the device as it is now.
  uint64_t fingerprint() const;

  // A graph with its step is about to be captured or replayed: what has changed on the host goes to
  // the device.
  void prepare_replay() const;

  // A graph with its step is about to be captured. Makes room for what the graph works with, on the
  // current stream.
  void begin_capture() const;

  // It was captured, which has changed nothing on the device. Returns what the graph works with,
  // and queues on the current stream what must come before a replay.
  std::vector<at::Tensor> end_capture() const;

  // Kernels of a graph have written behind autograd's back.
  void note_gradients_written() const;
  void note_parameters_written() const;

 private:
  OptimizerState& optimizer_;
};

}  // namespace accelerant::detail
