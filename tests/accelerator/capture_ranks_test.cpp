// capture() with gradient exchange: in several processes with graphs that rerun the step, and over
// NCCL with CUDA graphs, as far as a single process can show.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "accelerator/captured_training.h"
#include "accelerator/run_anew_backend.h"
#include "support/ranks.h"

namespace {

using namespace accelerator_test;
using accelerant::Precision;
using accelerant::dist::CommHook;

// Two batches; each call says which one this process uses.
class TwoShapes {
 public:
  explicit TwoShapes(CapturedTraining& training) : training_(training) {
    torch::manual_seed(5 + rank());
    for (const int64_t rows : {4, 2}) {
      x_.push_back(torch::randn({rows, 3}));
      y_.push_back(torch::randn({rows, 2}));
    }
  }

  template <class Step>
  torch::Tensor run(Step& step, bool is_short) {
    const auto i = static_cast<std::size_t>(is_short);
    return step(x_[i], y_[i]);
  }

  torch::Tensor run_plainly(bool is_short) {
    const auto i = static_cast<std::size_t>(is_short);
    return training_.body(x_[i], y_[i]);
  }

 private:
  CapturedTraining& training_;
  std::vector<torch::Tensor> x_;
  std::vector<torch::Tensor> y_;
};

// A captured training beside a plain one that gets the same batches.
class SideBySide {
 public:
  // Returns whether the captured one replayed, which must be the same in all processes.
  bool run(bool is_short) {
    plain_batches_.run_plainly(is_short);
    batches_.run(step, is_short);
    const auto all = training.accelerator.gather(torch::tensor({step.is_captured() ? 1 : 0}));
    EXPECT_TRUE(all.eq(all[0]).all().item<bool>()) << all;
    return step.is_captured();
  }

  void expect_same() const { expect_same_parameters(training, plain_); }

 private:
  CapturedTraining plain_{run_anew()};

 public:
  CapturedTraining training{run_anew()};
  decltype(training.captured()) step = training.captured();

 private:
  TwoShapes plain_batches_{plain_};
  TwoShapes batches_{training};
};

RANK_TEST(CaptureByRanks, ReplaysTrainTheSame, 2) {
  for (const int64_t steps : {1, 2}) {
    for (const bool in_front : {false, true}) {
      CaptureSetup setup = run_anew(on_cpu(Precision::no, steps));
      setup.rows = 32;
      setup.clears_in_front = in_front;
      EXPECT_GE(expect_same_training(setup, 4).replays, 8);
    }
  }
}

RANK_TEST(CaptureByRanks, SeesWhatTheProgramDoesBetweenReplays, 2) {
  for (const int64_t steps : {1, 2}) {
    for (const Precision precision : {Precision::no, Precision::fp16}) {
      CaptureSetup setup = run_anew(on_cpu(precision, steps));
      setup.options.scaler.init_scale = 64;  // these graphs cannot detect an overflow
      expect_changes_between_replays_to_count(setup);
    }
  }
}

RANK_TEST(CaptureByRanks, SavesAndLoadsBetweenReplays, 2) {
  expect_to_save_and_load_between_replays(run_anew(on_cpu(Precision::no, 2)));
}

RANK_TEST(CaptureByRanks, DifferentShapesInOneCall, 2) {
  SideBySide both;
  int64_t replays = 0;
  for (int i = 0; i < 30; ++i) {
    // Each shape comes alone and paired with the other; some pairs come often, some once.
    replays += both.run(rank() == 0 ? i % 5 == 4 : i % 3 == 2);
  }
  EXPECT_GE(replays, 10);
  EXPECT_EQ(both.step.why_not(), "");
  both.expect_same();
}

// All processes first get the same shape, so that each has graphs of both before shapes differ.
RANK_TEST(CaptureByRanks, CapturesEveryPairOfShapes, 2) {
  SideBySide both;
  for (int i = 0; i < 6; ++i) both.run(false);
  for (int i = 0; i < 3; ++i) both.run(true);
  EXPECT_EQ(both.step.graphs(), 2);
  for (int i = 0; i < 4; ++i) both.run(rank() == 0);
  EXPECT_TRUE(both.step.is_captured());
  EXPECT_EQ(both.step.graphs(), 3);
  EXPECT_TRUE(both.run(false));
  both.expect_same();
}

// The other processes have captured the step.
RANK_TEST(CaptureByRanks, CaptureThatFailsInOneProcess, 2) {
  CapturedTraining training(run_anew());
  auto step = training.accelerator.capture([&](const torch::Tensor& x, const torch::Tensor& y) {
    auto loss = training.body(x, y);
    if (rank() == 1 && RunAnewBackend::is_capturing) throw std::runtime_error("not in a graph");
    return loss;
  });
  TwoShapes batches(training);
  for (int i = 0; i < 8; ++i) batches.run(step, false);
  EXPECT_FALSE(step.is_captured());
  EXPECT_TRUE(contains(step.why_not(), rank() == 1 ? "not in a graph" : "another process"));
  const auto all = training.accelerator.gather(training.net->last->weight.detach().unsqueeze(0));
  EXPECT_TRUE(all[0].equal(all[1]));
}

RANK_TEST(CaptureByRanks, CaptureThatFailsInTheMiddleOfABackward, 1) {
  CaptureSetup setup = run_anew();
  setup.options.process_group.with_one_process = true;
  CapturedTraining training(setup);
  // By then the gradients of the last layer have arrived.
  training.net->first->bias.register_hook([](const torch::Tensor&) {
    if (RunAnewBackend::is_capturing) throw std::runtime_error("not in a graph");
  });
  auto step = training.captured();
  TwoShapes batches(training);
  for (int i = 0; i < 8; ++i) batches.run(step, false);
  EXPECT_TRUE(contains(step.why_not(), "not in a graph")) << step.why_not();
}

RANK_TEST(CaptureByRanks, RefusesExchangesThatTheHostCompares, 2) {
  CapturedTraining training(run_anew());
  auto step = training.accelerator.capture([&](const torch::Tensor& x, const torch::Tensor& y) {
    return training.accelerator.reduce(training.body(x, y).detach());
  });
  TwoShapes batches(training);
  for (int i = 0; i < 6; ++i) batches.run(step, false);
  EXPECT_TRUE(contains(step.why_not(), "reduce()")) << step.why_not();
}

RANK_TEST(CaptureByRanks, LosesGraphsInAllProcesses, 2) {
  SideBySide both;
  std::vector<bool> was_captured;
  for (int i = 0; i < 16; ++i) {
    if (i == 8 && rank() == 1) {  // different memory, in one process
      torch::Tensor weight = both.training.net->last->weight;
      weight.set_data(weight.detach().clone());
    }
    was_captured.push_back(both.run(false));
  }
  EXPECT_TRUE(was_captured[7]);
  EXPECT_FALSE(was_captured[8]);
  EXPECT_TRUE(was_captured[15]) << both.step.why_not();
  both.expect_same();
}

RANK_TEST(CaptureByRanks, OneThatCannotKeepsAllFromIt, 2) {
  CapturedTraining training(run_anew());
  auto step = training.captured();
  const torch::Tensor x = torch::ones({4, 3}).requires_grad_(rank() == 1);
  const torch::Tensor y = torch::ones({4, 2});
  for (int i = 0; i < 8; ++i) step(x, y);
  EXPECT_FALSE(step.is_captured());
  EXPECT_TRUE(contains(step.why_not(), rank() == 1 ? "requires gradients" : "another process"))
      << step.why_not();
}

RANK_TEST(CaptureByRanks, RunsEagerlyWithUnevenInputs, 2) {
  CapturedTraining training(run_anew());
  TwoShapes batches(training);
  auto step = training.captured();
  for (int i = 0; i < 6; ++i) batches.run(step, false);
  EXPECT_TRUE(step.is_captured()) << step.why_not();
  training.accelerator.join_uneven_inputs({&training.model}, [&] {
    for (int i = 0; i < 2 + rank(); ++i) {
      batches.run(step, false);
      EXPECT_FALSE(step.is_captured());
    }
  });
  for (int i = 0; i < 3; ++i) batches.run(step, false);
  EXPECT_TRUE(step.is_captured()) << step.why_not();
}

RANK_TEST(CaptureByRanks, RefusesExchangesThatTheHostDecides, 2) {
  const auto why_not = [](const accelerant::dist::DataParallelOptions& options) {
    CaptureSetup setup = run_anew();
    setup.options.data_parallel = options;
    CapturedTraining training(setup);
    TwoShapes batches(training);
    auto step = training.captured();
    for (int i = 0; i < 6; ++i) batches.run(step, false);
    EXPECT_FALSE(step.is_captured());
    return step.why_not();
  };
  EXPECT_TRUE(contains(why_not({.find_unused_parameters = true}), "find_unused_parameters"));
  EXPECT_TRUE(contains(why_not({.comm_hook = {.hook = CommHook::power_sgd}}), "PowerSGD"));
}

// Gradients of one process, exchanged by NCCL.
class WithNccl {
 public:
  static bool is_possible() { return torch::cuda::is_available(); }

  static CaptureSetup setup(const accelerant::dist::DataParallelOptions& options = {},
                            Precision precision = Precision::no, int64_t steps = 1) {
    CaptureSetup made{
        .options = {.mixed_precision = precision, .gradient_accumulation = {.steps = steps}}};
    made.options.data_parallel = options;
    made.options.process_group.backend = accelerant::dist::Backend::nccl;
    made.options.process_group.with_one_process = true;
    return made;
  }
};

RANK_TEST(CaptureWithNccl, ReplaysTrainTheSame, 1) {
  if (!WithNccl::is_possible()) GTEST_SKIP() << "no CUDA device";
  for (const accelerant::dist::DataParallelOptions& options :
       std::vector<accelerant::dist::DataParallelOptions>{
           {},
           {.static_graph = true},
           {.gradient_as_bucket_view = true},
           {.bucket_cap_mb = 0.0001},
           {.comm_hook = {.hook = CommHook::bf16}}}) {
    for (const Precision precision : {Precision::no, Precision::fp16}) {
      for (const int64_t steps : {1, 2}) {
        SCOPED_TRACE(testing::Message()
                     << "precision " << static_cast<int>(precision) << ", " << steps
                     << " steps, hook " << static_cast<int>(options.comm_hook.hook) << ", views "
                     << options.gradient_as_bucket_view << ", static " << options.static_graph);
        auto setup = WithNccl::setup(options, precision, steps);
        setup.dropout = 0.2;
        EXPECT_GE(expect_same_training(setup, 4).replays, 8);
      }
    }
  }
}

RANK_TEST(CaptureWithNccl, SeesWhatTheProgramDoesBetweenReplays, 1) {
  if (!WithNccl::is_possible()) GTEST_SKIP() << "no CUDA device";
  expect_changes_between_replays_to_count(WithNccl::setup());
  expect_changes_between_replays_to_count(WithNccl::setup({}, Precision::fp16, 2));
}

RANK_TEST(CaptureWithNccl, SavesAndLoadsBetweenReplays, 1) {
  if (!WithNccl::is_possible()) GTEST_SKIP() << "no CUDA device";
  expect_to_save_and_load_between_replays(WithNccl::setup());
  expect_to_save_and_load_between_replays(WithNccl::setup({.static_graph = true}));
}

RANK_TEST(CaptureWithNccl, WaitsForAGraphOfAutogradThatIsAlive, 1) {
  if (!WithNccl::is_possible()) GTEST_SKIP() << "no CUDA device";
  CapturedTraining training(WithNccl::setup());
  auto step = training.captured();
  const SameBatch batch(training);
  {
    const torch::Tensor held = training.model(batch.x);
    for (int i = 0; i < 6; ++i) step(batch.x, batch.y);
    EXPECT_FALSE(step.is_captured());
    EXPECT_EQ(step.why_not(), "");
  }
  for (int i = 0; i < 40; ++i) step(batch.x, batch.y);
  EXPECT_TRUE(step.is_captured()) << step.why_not();
}

// The connections must not wait for graphs that use them.
RANK_TEST(CaptureWithNccl, GraphsMayOutliveTheAccelerator, 1) {
  if (!WithNccl::is_possible()) GTEST_SKIP() << "no CUDA device";
  auto training = std::make_unique<CapturedTraining>(WithNccl::setup());
  auto step = training->captured();
  {
    const SameBatch batch(*training);
    for (int i = 0; i < 8; ++i) step(batch.x, batch.y);
  }
  EXPECT_TRUE(step.is_captured()) << step.why_not();
  training.reset();
  EXPECT_EQ(step.graphs(), 0);
}

}  // namespace
