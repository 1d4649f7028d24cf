// Activation checkpoints inside data-parallel models.
#include <accelerant/nn/activation_checkpoint.h>

#include "accelerator/processes/training.h"

namespace processes_test {
namespace {

namespace nn = torch::nn;

// The same parameter in two checkpoints, which Python's reentrant variant cannot handle, and others
// outside.
struct CheckpointedImpl : nn::Module {
  explicit CheckpointedImpl(bool with_checkpoints) : with_checkpoints_(with_checkpoints) {}

  nn::Linear first{register_module("first", nn::Linear(kFeatures, 16))};
  nn::Linear middle{register_module("middle", nn::Linear(16, 16))};
  nn::Linear unused{register_module("unused", nn::Linear(4, 4))};
  nn::Linear last{register_module("last", nn::Linear(16, kClasses))};

  torch::Tensor forward(const torch::Tensor& x) {
    const auto part = [this](const torch::Tensor& h) { return torch::tanh(middle(h)); };
    auto h = torch::tanh(first(x));
    for (int i = 0; i < 2; ++i) {
      h = with_checkpoints_ ? accelerant::nn::checkpoint(part, h) : part(h);
    }
    return last(h);
  }

 private:
  bool with_checkpoints_;
};
TORCH_MODULE(Checkpointed);

void expect_same_with_checkpoints(const accelerant::dist::DataParallelOptions& parallel,
                                  int64_t window = 1) {
  Run run;
  run.options.data_parallel = parallel;
  run.options.gradient_accumulation.steps = window;
  expect_same_as_one_process(
      run, [] { return Checkpointed(true); }, [] { return Checkpointed(false); });
}

RANK_TEST(CheckpointsOfSeveralProcesses, FindUnusedParameters, 2) {
  expect_same_with_checkpoints({.find_unused_parameters = true});
}

RANK_TEST(CheckpointsOfSeveralProcesses, StaticGraph, 2) {
  expect_same_with_checkpoints({.static_graph = true});
}

RANK_TEST(CheckpointsOfSeveralProcesses, Accumulate, 2) {
  expect_same_with_checkpoints({.find_unused_parameters = true}, 4);
}

}  // namespace
}  // namespace processes_test
