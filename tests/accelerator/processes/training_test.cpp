// N processes with a batch of b equal one process with a batch of N b.
#include "accelerator/processes/training.h"

namespace processes_test {
namespace {

namespace nn = torch::nn;

// Every other forward leaves out its second half.
struct SometimesUnusedImpl : nn::Module {
  nn::Linear always{register_module("always", nn::Linear(kFeatures, kClasses))};
  nn::Linear sometimes{register_module("sometimes", nn::Linear(kFeatures, kClasses))};
  int64_t calls = 0;
  torch::Tensor forward(const torch::Tensor& x) {
    const auto y = always(x);
    return calls++ % 2 == 0 ? y : y + sometimes(x);
  }
};
TORCH_MODULE(SometimesUnused);

// One parameter under two names, used twice.
struct SharedImpl : nn::Module {
  nn::Linear first{register_module("first", nn::Linear(kFeatures, kFeatures))};
  nn::Linear again{register_module("again", first)};
  nn::Linear last{register_module("last", nn::Linear(kFeatures, kClasses))};
  torch::Tensor forward(const torch::Tensor& x) { return last(again(torch::tanh(first(x)))); }
};
TORCH_MODULE(Shared);

struct FrozenImpl : nn::Module {
  nn::Linear frozen{register_module("frozen", nn::Linear(kFeatures, 8))};
  nn::Linear trained{register_module("trained", nn::Linear(8, kClasses))};
  FrozenImpl() {
    for (torch::Tensor parameter : frozen->parameters()) parameter.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return trained(torch::relu(frozen(x))); }
};
TORCH_MODULE(Frozen);

// Looks rows up by the sign of the inputs, with sparse gradients.
struct SparseImpl : nn::Module {
  nn::Embedding table{register_module(
      "table", nn::Embedding(nn::EmbeddingOptions(2 * kFeatures, kClasses).sparse(true)))};
  torch::Tensor forward(const torch::Tensor& x) {
    const auto rows = torch::arange(kFeatures) * 2 + (x > 0).to(torch::kLong);
    return table(rows).mean(1);
  }
};
TORCH_MODULE(Sparse);

Run with_parallel(accelerant::dist::DataParallelOptions parallel) {
  Run run;
  run.options.data_parallel = parallel;
  return run;
}

RANK_TEST(SeveralProcesses, TrainLikeOne, 2) { expect_same_as_one_process({}, mlp); }
RANK_TEST(SeveralProcesses, TrainLikeOneWithThree, 3) { expect_same_as_one_process({}, mlp); }
RANK_TEST(SeveralProcesses, TrainLikeOneWithFour, 4) { expect_same_as_one_process({}, mlp); }

RANK_TEST(SeveralProcesses, AccumulateWithAShortTail, 2) {
  Run run;
  run.options.gradient_accumulation.steps = 4;
  expect_same_as_one_process(run, mlp);
}

RANK_TEST(SeveralProcesses, AccumulateWithAnExchangeInEveryBatch, 2) {
  Run run;
  run.options.gradient_accumulation = {.steps = 4, .sync_each_batch = true};
  expect_same_as_one_process(run, mlp);
}

RANK_TEST(SeveralProcesses, WeighByItems, 3) {
  Run run;
  run.loss = Loss::items;
  expect_same_as_one_process(run, mlp);
}

RANK_TEST(SeveralProcesses, WeighByItemsOverAWindow, 2) {
  Run run;
  run.loss = Loss::items;
  run.options.gradient_accumulation.steps = 4;
  expect_same_as_one_process(run, mlp);
}

RANK_TEST(SeveralProcesses, UnusedParameters, 2) {
  expect_same_as_one_process(with_parallel({.find_unused_parameters = true}),
                             [] { return SometimesUnused(); });
}

RANK_TEST(SeveralProcesses, StaticGraph, 2) {
  expect_same_as_one_process(with_parallel({.static_graph = true}), mlp);
}

RANK_TEST(SeveralProcesses, GradientsAsBucketViews, 2) {
  expect_same_as_one_process(with_parallel({.gradient_as_bucket_view = true}), mlp);
}

RANK_TEST(SeveralProcesses, SmallBuckets, 2) {
  expect_same_as_one_process(with_parallel({.bucket_cap_mb = 1e-4}), mlp);
}

RANK_TEST(SeveralProcesses, SharedParameters, 2) {
  expect_same_as_one_process({}, [] { return Shared(); });
}

RANK_TEST(SeveralProcesses, FrozenParameters, 2) {
  expect_same_as_one_process({}, [] { return Frozen(); });
}

RANK_TEST(SeveralProcesses, SparseGradients, 2) {
  expect_same_as_one_process({}, [] { return Sparse(); });
}

}  // namespace
}  // namespace processes_test
