// What a training loop on several processes may do beyond plain steps.
#include <accelerant/dist/sync_batch_norm.h>
#include <torch/script.h>

#include <limits>
#include <set>

#include "accelerator/processes/training.h"
#include "dist/world_access.h"
#include "support/count_exchanges.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"
#include "watch/progress.h"

namespace processes_test {
namespace {

namespace nn = torch::nn;

nn::Sequential normalised_by_all() {
  return nn::Sequential(nn::Linear(kFeatures, 8), accelerant::dist::SyncBatchNorm(8), nn::Tanh(),
                        nn::Linear(8, kClasses));
}
nn::Sequential normalised_alone() {
  return nn::Sequential(nn::Linear(kFeatures, 8), nn::BatchNorm1d(8), nn::Tanh(),
                        nn::Linear(8, kClasses));
}

RANK_TEST(SeveralProcesses, SyncBatchNormSeesTheBatchesOfAll, 2) {
  Run run;
  run.tolerance = 1e-5;  // the mean of means sums in a different order
  expect_same_as_one_process(run, normalised_by_all, normalised_alone);
}

RANK_TEST(SeveralProcesses, ScriptModules, 2) {
  torch::jit::Module net("net");
  torch::manual_seed(3);
  const auto weight = torch::randn({kClasses, kFeatures});
  net.register_parameter("weight", (weight + (rank() == 0 ? 0 : 1)).requires_grad_(),
                         /*is_buffer=*/false);
  net.define("def forward(self, x):\n  return torch.matmul(x, self.weight.t())\n");
  const Rows rows = make_rows(10 * kBatch * num_ranks());

  auto alone = weight.clone().requires_grad_();
  torch::optim::SGD sgd_alone({alone}, 0.1);
  const int64_t all = kBatch * num_ranks();
  for (int64_t step = 0; step < 10; ++step) {
    const auto part = [&](const torch::Tensor& t) { return t.narrow(0, step * all, all); };
    sgd_alone.zero_grad();
    row_losses(part(rows.inputs).matmul(alone.t()), part(rows.targets)).mean().backward();
    sgd_alone.step();
  }

  Accelerator accelerator({.cpu = true});
  torch::optim::SGD sgd({net.attr("weight").toTensor()}, 0.1);
  auto batches = accelerant::data::loader(accelerant::data::tensors(rows.inputs, rows.targets),
                                          {.batch_size = kBatch});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
  for (auto&& [inputs, targets] : loader) {
    auto window = accelerator.accumulate(model);
    accelerator.backward(row_losses(model(inputs).toTensor(), targets).mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto trained = net.attr("weight").toTensor();
  EXPECT_LE((trained - alone).abs().max().item<double>(), 1e-6);
  expect_same_on_all_ranks(accelerator.world(), {trained});
}

// A model with one weight: the gradient of its mean output is the mean input.
struct ScaleImpl : nn::Module {
  torch::Tensor w = register_parameter("w", torch::ones({1}));
  torch::Tensor forward(const torch::Tensor& x) { return w * x; }
};
TORCH_MODULE(Scale);

// An input that is rank + 1: the mean over two processes is 1.5.
torch::Tensor own_input() { return torch::full({1}, static_cast<float>(rank() + 1)); }
double gradient_of(const Scale& net) { return net->w.grad().item<double>(); }

struct Trained {
  explicit Trained(const AcceleratorOptions& options = {.cpu = true})
      : accelerator(options),
        sgd(net->parameters(), 0.1),
        model(accelerator.prepare_model(net)),
        optimizer(accelerator.prepare_optimizer(sgd)) {}

  Accelerator accelerator;
  Scale net;
  torch::optim::SGD sgd;
  accelerant::Model<Scale> model;
  accelerant::Optimizer optimizer;
};

RANK_TEST(SeveralProcesses, NoSyncSendsNothingAndTheNextExchangeSendsAll, 2) {
  Trained t;
  {
    const CountExchanges counted;
    const auto scope = t.accelerator.no_sync(t.model);
    t.accelerator.backward(t.model(own_input()).sum());
    EXPECT_EQ(counted.calls_of("allreduce_"), 0);
  }
  EXPECT_EQ(gradient_of(t.net), rank() + 1);
  t.accelerator.backward(t.model(own_input()).sum());
  EXPECT_DOUBLE_EQ(gradient_of(t.net), 3);  // mean of 2 and 4
  expect_same_on_all_ranks(t.accelerator.world(), {t.net->w.grad()});
}

RANK_TEST(SeveralProcesses, AStepSendsEachGradientOnce, 2) {
  Accelerator accelerator({.cpu = true});
  nn::Linear net(30, 10);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 3; ++step) {
    const CountExchanges counted;
    accelerator.backward(model(torch::randn({4, 30})).sum());
    optimizer.step();
    optimizer.zero_grad();
    EXPECT_EQ(counted.bytes_of("allreduce_"), 4 * (30 * 10 + 10));
    EXPECT_EQ(counted.calls_of("allreduce_"), 1);
  }
  expect_same_on_all_ranks(accelerator.world(), net->parameters());
}

RANK_TEST(SeveralProcesses, TriggerSyncInBackward, 2) {
  Trained t;
  torch::Tensor loss;
  {
    const auto scope = t.accelerator.no_sync(t.model);
    loss = t.model(own_input()).sum();
  }
  t.accelerator.trigger_sync_in_backward(t.model);
  t.accelerator.backward(loss);
  EXPECT_DOUBLE_EQ(gradient_of(t.net), 1.5);
}

RANK_TEST(SeveralProcesses, ASecondBackwardIsExchangedToo, 2) {
  Trained t;
  const auto output = t.model(own_input());
  t.accelerator.backward(output.sum(), {.retain_graph = true});
  t.accelerator.backward(2 * output.sum());
  EXPECT_DOUBLE_EQ(gradient_of(t.net), 4.5);
}

// Its output is dropped, so the micro-step that follows must not exchange anything.
RANK_TEST(SeveralProcesses, AForwardThatIsOnlyLookedAtChangesNothing, 2) {
  Trained t({.cpu = true, .gradient_accumulation = {.steps = 2}});
  for (int step = 0; step < 6; ++step) {
    if (rank() == 0 && step == 2) t.model(own_input());
    auto window = t.accelerator.accumulate(t.model);
    t.accelerator.backward(t.model(own_input()).sum());
    t.optimizer.step();
    t.optimizer.zero_grad();
  }
  EXPECT_NEAR(t.net->w.item<double>(), 1 - 0.1 * 3 * 1.5, 1e-6);
  expect_same_on_all_ranks(t.accelerator.world(), {t.net->w});
}

RANK_TEST(SeveralProcesses, TheMonitorKnowsTheNamesOfExchanges, 2) {
  Accelerator accelerator({.cpu = true});
  accelerator.gather(own_input());
  accelerator.reduce(own_input());
  accelerator.pad_across_processes(own_input());
  const auto recent =
      accelerant::dist::WorldAccess::progress(accelerator.world()).snapshot().recent;
  EXPECT_GE(recent.size(), 3U);
  for (const std::string& name : recent) {
    EXPECT_TRUE(name == "gather" || name == "reduce" || name == "pad_across_processes") << name;
  }
}

RANK_TEST(SeveralProcesses, TheModelItselfIsAnError, 2) {
  Trained t;
  EXPECT_TRUE(
      contains(whole_error_of([&] { t.accelerator.backward(t.model.module()(own_input()).sum()); }),
               "not exchanged between the processes"));
}

RANK_TEST(SeveralProcesses, GraphsOfGradientsAreRefused, 2) {
  Trained t;
  EXPECT_TRUE(contains(whole_error_of([&] {
                         t.accelerator.backward(t.model(own_input()).sum(), {.create_graph = true});
                       }),
                       "create_graph"));
}

struct TwoHeadsImpl : nn::Module {
  nn::Linear used{register_module("used", nn::Linear(kFeatures, 1))};
  nn::Linear unused{register_module("unused", nn::Linear(kFeatures, 1))};
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x) {
    return {used(x), unused(x)};
  }
};
TORCH_MODULE(TwoHeads);

RANK_TEST(SeveralProcesses, UnusedParametersAreNamedInTheSameStep, 2) {
  Accelerator accelerator({.cpu = true});
  TwoHeads net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(std::get<0>(model(torch::randn({2, kFeatures}))).sum());
  EXPECT_TRUE(contains(whole_error_of([&] { optimizer.step(); }), "unused.weight"));
}

RANK_TEST(SeveralProcesses, AnOverflowInOneProcessSkipsTheStepInAll, 2) {
  Trained t({.cpu = true,
             .mixed_precision = accelerant::Precision::fp16,
             .scaler = {.init_scale = 1024}});
  const double factor = rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0;
  t.accelerator.backward(t.model(own_input()).sum() * factor);
  EXPECT_TRUE(t.optimizer.step().skipped());
  EXPECT_EQ(t.net->w.item<double>(), 1.0);
  t.optimizer.zero_grad();
  t.accelerator.backward(t.model(own_input()).sum());
  EXPECT_FALSE(t.optimizer.step().skipped());
  EXPECT_EQ(t.accelerator.scaler().get_scale(), 512);
  expect_same_on_all_ranks(t.accelerator.world(), {t.net->w});
}

// Tensors that belong to no model are not exchanged, so only the flag can tell the other processes.
RANK_TEST(SeveralProcesses, AnOverflowOfLooseTensorsSkipsTheStepInAll, 2) {
  Accelerator accelerator({.cpu = true, .mixed_precision = accelerant::Precision::fp16});
  auto tensor = torch::ones({1}, torch::requires_grad());
  torch::optim::SGD sgd({tensor}, 0.1);
  auto optimizer = accelerator.prepare_optimizer(sgd, {.loose_parameters = true});
  const double factor = rank() == 1 ? std::numeric_limits<double>::infinity() : 1.0;
  accelerator.backward((tensor * factor).sum());
  EXPECT_TRUE(optimizer.step().skipped());
}

RANK_TEST(SeveralProcesses, LoadersOfAllTakeTheSeedOfTheMainProcess, 2) {
  torch::manual_seed(100 + rank());
  Accelerator accelerator({.cpu = true});
  auto batches = accelerant::data::loader(accelerant::data::tensors(torch::arange(21)),
                                          {.batch_size = 4, .shuffle = true});
  auto loader = accelerator.prepare(batches);
  std::set<int64_t> seen;
  int64_t count = 0;
  for (auto&& [numbers] : loader) {
    const auto all = accelerator.gather_for_metrics(numbers);
    for (int64_t i = 0; i < all.numel(); ++i) seen.insert(all[i].item<int64_t>());
    count += all.numel();
  }
  EXPECT_EQ(count, 21);
  EXPECT_EQ(seen.size(), 21U);
}

RANK_TEST(SeveralProcesses, TriggersAreSeenByAll, 2) {
  Accelerator accelerator({.cpu = true});
  EXPECT_FALSE(accelerator.check_trigger());
  if (rank() == 1) accelerator.set_trigger();
  EXPECT_TRUE(accelerator.check_trigger());
  EXPECT_FALSE(accelerator.check_trigger());
}

RANK_TEST(SeveralProcesses, UnevenInputsAreJoined, 2) {
  Trained t;
  t.accelerator.join_uneven_inputs({&t.model}, [&] {
    for (int batch = 0; batch < 2 + 3 * rank(); ++batch) {
      const auto window = t.accelerator.accumulate(t.model);
      t.accelerator.backward(t.model(own_input()).sum());
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
  });
  // Two steps with the mean of 1 and 2, then three with the mean of 0 and 2.
  EXPECT_NEAR(t.net->w.item<double>(), 1 - 0.1 * (2 * 1.5 + 3 * 1.0), 1e-6);
  expect_same_on_all_ranks(t.accelerator.world(), {t.net->w});
}

RANK_TEST(SeveralProcesses, LocalSgdAveragesParameters, 2) {
  Trained t;
  {
    auto local_sgd = t.accelerator.local_sgd(t.model, {.steps = 2});
    for (int batch = 0; batch < 2; ++batch) {
      const CountExchanges counted;
      t.accelerator.backward(t.model(own_input()).sum());
      EXPECT_EQ(counted.calls_of("allreduce_"), 0);
      t.optimizer.step();
      t.optimizer.zero_grad();
      local_sgd.step();
    }
    EXPECT_NEAR(t.net->w.item<double>(), 1 - 0.1 * (1.5 + 1.5), 1e-6);
  }
  expect_same_on_all_ranks(t.accelerator.world(), {t.net->w});
}

RANK_TEST(SeveralProcesses, EvaluationExchangesNothingOfTheGradients, 2) {
  Trained t;
  t.accelerator.backward(t.model(own_input()).sum());
  t.optimizer.step();
  t.optimizer.zero_grad();
  t.model.eval();
  const torch::NoGradGuard no_grad;
  const CountExchanges counted;
  if (rank() == 0) t.model(own_input());  // no buffers, so one process may run it alone
  EXPECT_EQ(counted.calls_of(), 0);
}

RANK_TEST(SeveralProcesses, OneAcceleratorAfterTheOther, 2) {
  for (int round = 0; round < 3; ++round) {
    Trained t;
    t.accelerator.backward(t.model(own_input()).sum());
    EXPECT_DOUBLE_EQ(gradient_of(t.net), 1.5);
  }
}

RANK_TEST(SeveralProcesses, ExchangesAfterTheEndAreErrors, 2) {
  Trained t;
  t.accelerator.end_training();
  EXPECT_TRUE(contains(whole_error_of([&] { t.accelerator.gather(own_input()); }),
                       "groups that have ended"));
}

// The handles outlive the Accelerator.
RANK_TEST(SeveralProcesses, HandlesMayOutliveTheAccelerator, 2) {
  accelerant::Model<Scale> model;
  {
    Trained t;
    model = t.model;
    t.accelerator.backward(model(own_input()).sum());
  }
  EXPECT_TRUE(contains(whole_error_of([&] { model(own_input()); }), "outlived its Accelerator"));
}

RANK_TEST(SeveralProcesses, OneOfThemSavesTheModel, 2) {
  // To one folder, whose name both processes must know.
  const std::string folder =
      testing::TempDir() + "accelerant-saved-by-" + std::getenv("MASTER_PORT");
  Accelerator accelerator({.cpu = true});
  auto net = mlp();
  auto model = accelerator.prepare(net);
  const auto saved = accelerator.save_model(model, folder);
  EXPECT_EQ(saved.files, std::vector<std::string>{"model.safetensors"});
  auto other = mlp();
  accelerant::load_checkpoint_in_model(other, folder);
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(torch::equal(other->parameters()[i], net->parameters()[i]));
  }
  expect_same_on_all_ranks(accelerator.world(), other->parameters());
  // If the saving process fails, all processes get the error.
  const std::string error =
      whole_error_of([&] { accelerator.save_model(model, folder + "/model.safetensors"); });
  EXPECT_TRUE(contains(error, "a folder")) << error;
  accelerator.wait_for_everyone();
  if (rank() == 0) run_in_shell("rm -r '" + folder + "'");
}

}  // namespace
}  // namespace processes_test
