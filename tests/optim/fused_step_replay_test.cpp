// Steps in CUDA graphs: their learning rates, and the memory they use.
#include <algorithm>
#include <iterator>

#include "optim/fused_step_helpers.h"
#include "optim/fused_step_replay.h"
#include "support/expect_error.h"
#include "support/on_device.h"

#if defined(ACCELERANT_WITH_CUDA)
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace {

using accelerant::FusedStep;
using accelerant::RateChoice;
using Replay = accelerant::FusedStepReplay;

// Two param groups, with the same gradients in all steps.
struct TwoGroups {
  explicit TwoGroups(const at::TensorOptions& options)
      : parameters{torch::ones({40}, options), torch::ones({50}, options)},
        optimizer({torch::optim::OptimizerParamGroup({parameters[0]}),
                   torch::optim::OptimizerParamGroup({parameters[1]})},
                  torch::optim::SGDOptions(0.5)) {
    for (at::Tensor& parameter : parameters) {
      parameter.requires_grad_().mutable_grad() = torch::ones_like(parameter);
    }
  }

  void set_rates(double first, double second) {
    optimizer.param_groups()[0].options().set_lr(first);
    optimizer.param_groups()[1].options().set_lr(second);
  }

  std::vector<at::Tensor> parameters;
  torch::optim::SGD optimizer;
};

class FusedStepReplay : public OnDevice {
 protected:
  RateChoice choice_of(int64_t which) const {
    return {.rates = {{1, 2}, {3, 4}, {5, 6}}, .which = torch::tensor({which}, options(at::kLong))};
  }
};
ON_EVERY_DEVICE(FusedStepReplay);

TEST_P(FusedStepReplay, AStepOutsideOfGraphsHasTheRatesOfTheOptions) {
  TwoGroups ours(options());
  TwoGroups theirs(options());
  FusedStep fused(ours.optimizer);
  for (int i = 0; i < 4; ++i) {
    Replay(fused).prepare(choice_of(i % 3));  // before the first step there is nothing to prepare
    fused.step();
    theirs.optimizer.step();
  }
  expect_same(ours.parameters, theirs.parameters, "SGD");
}

TEST_P(FusedStepReplay, AChoiceMustFitTheGroups) {
  TwoGroups groups(options());
  FusedStep fused(groups.optimizer);
  fused.step();
  RateChoice choice = choice_of(0);
  choice.rates[1].pop_back();
  const std::string error = whole_error_of([&] { Replay(fused).prepare(choice); });
  EXPECT_TRUE(contains(error, "2 rates, one per param group")) << error;
}

#if defined(ACCELERANT_WITH_CUDA)
TEST(FusedStepReplayOnCuda, TheDeviceChoosesTheRates) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  TwoGroups ours(at::kCUDA);
  TwoGroups theirs(at::kCUDA);
  FusedStep fused(ours.optimizer);
  fused.step();  // warm up
  theirs.optimizer.step();
  Replay(fused).prepare();
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  fused.step();
  graph.capture_end();
  const std::vector<at::Tensor> memory = Replay(fused).take_memory_of_graphs();

  const std::vector<std::vector<double>> rates{{1, 2}, {3, 4}, {5, 6}};
  const at::Tensor which = torch::zeros({1}, at::device(at::kCUDA).dtype(at::kLong));
  for (int i = 0; i < 12; ++i) {
    const bool is_chosen = i % 4 != 3;
    if (is_chosen) {
      // After a long kernel, so that the host cannot know it.
      const at::Tensor big = torch::randn({2048, 2048}, at::kCUDA);
      which.copy_((big.mm(big).sum() * 0 + i % 3).to(at::kLong));
      Replay(fused).prepare(RateChoice{.rates = rates, .which = which});
      theirs.set_rates(rates[static_cast<std::size_t>(i % 3)][0],
                       rates[static_cast<std::size_t>(i % 3)][1]);
    } else {
      Replay(fused).prepare();
      theirs.set_rates(0.5, 0.5);
    }
    graph.replay();
    Replay(fused).note_replayed();
    theirs.optimizer.step();
  }
  expect_same(ours.parameters, theirs.parameters, "SGD");
}

// Kernels and copies: filling a table is one more, whichever it is.
std::size_t nodes_in(at::cuda::CUDAGraph& graph) {
  std::size_t count = 0;
  C10_CUDA_CHECK(cudaGraphGetNodes(graph.raw_cuda_graph(), nullptr, &count));
  return count;
}

// Takes all free memory, in pieces as small as tables, and writes to it.
void overwrite_free_memory() {
  std::vector<at::Tensor> pieces;
  for (int i = 0; i < 200; ++i) {
    for (const int64_t size : {64, 512}) pieces.push_back(torch::full({size}, 0x5a, at::kCUDA));
  }
}

class CapturedGroups {
 public:
  explicit CapturedGroups(bool reserves) {
    fused.step();  // warm up
    capture(graph, reserves, [this] { fused.step(); });
  }

  template <class Work>
  void capture(at::cuda::CUDAGraph& captured, bool reserves, const Work& work) {
    Replay(fused).prepare();
    if (reserves) Replay(fused).reserve_for_capture();
    captured.capture_begin();
    work();
    captured.capture_end();
    std::ranges::move(Replay(fused).take_memory_of_graphs(), std::back_inserter(memory_));
  }

  void replay(at::cuda::CUDAGraph& captured) {
    overwrite_free_memory();
    Replay(fused).prepare();
    captured.replay();
    Replay(fused).note_replayed();
  }

  TwoGroups groups{at::kCUDA};
  FusedStep fused{groups.optimizer};
  at::cuda::CUDAGraph graph{/*keep_graph=*/true};

 private:
  std::vector<at::Tensor> memory_;
};

TEST(FusedStepReplayOnCuda, ReplaysBringNothingAlongWithReservedMemory) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  CapturedGroups plain(/*reserves=*/false);
  CapturedGroups reserved(/*reserves=*/true);
  EXPECT_GT(nodes_in(plain.graph), nodes_in(reserved.graph));
  for (int i = 0; i < 5; ++i) {
    plain.replay(plain.graph);
    reserved.replay(reserved.graph);
  }
  EXPECT_LT(plain.groups.parameters[0][0].item<double>(), 0);  // it has stepped
  expect_same(reserved.groups.parameters, plain.groups.parameters, "SGD");
}

TEST(FusedStepReplayOnCuda, ReservedMemoryIsOfOneGraph) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  CapturedGroups ours(/*reserves=*/true);
  TwoGroups theirs(at::kCUDA);
  theirs.optimizer.step();  // for the warm-up
  // Two steps, with a gradient that moves in between.
  at::cuda::CUDAGraph twice(/*keep_graph=*/true);
  at::Tensor& gradient = ours.groups.parameters[0].mutable_grad();
  const at::Tensor moved = gradient.clone();
  const at::Tensor before = gradient;
  ours.capture(twice, /*reserves=*/true, [&] {
    ours.fused.step();
    gradient = moved;
    ours.fused.step();
  });
  EXPECT_GT(nodes_in(twice), 2 * nodes_in(ours.graph));
  gradient = before;
  for (int i = 0; i < 3; ++i) {
    ours.replay(ours.graph);
    ours.replay(twice);
    ours.fused.step();  // not in a graph
    for (int k = 0; k < 4; ++k) theirs.optimizer.step();
  }
  expect_same(ours.groups.parameters, theirs.parameters, "SGD");
}

TEST(FusedStepReplayOnCuda, ReservedMemoryIsOfTheNextCapture) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  CapturedGroups captured(/*reserves=*/false);
  at::Tensor other = torch::ones({8}, at::kCUDA);
  at::cuda::CUDAGraph without_step;
  captured.capture(without_step, /*reserves=*/true, [&] { other.add_(1); });
  at::cuda::CUDAGraph with_step(/*keep_graph=*/true);
  captured.capture(with_step, /*reserves=*/false, [&] { captured.fused.step(); });
  EXPECT_EQ(nodes_in(with_step), nodes_in(captured.graph));
}
#endif

}  // namespace
