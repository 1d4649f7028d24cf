// Accelerator::prepare for optimizers, schedules, loaders of torch::data and TorchScript.
#include <gtest/gtest.h>
#include <torch/script.h>

#include <nlohmann/json.hpp>
#include <type_traits>

#include "accelerator/helpers.h"
#include "support/expect_error.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Model;
using accelerant::Precision;
using accelerant::StepResult;

TEST(Prepare, OptimizersInEveryForm) {
  torch::nn::Linear net(2, 1);
  torch::nn::Linear other(2, 1);
  torch::nn::Linear third(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto shared = std::make_shared<torch::optim::Adam>(other->parameters(), 0.1);
  const auto unique = std::make_unique<torch::optim::AdamW>(third->parameters(), 0.1);
  Accelerator accelerator(on_cpu());
  auto [model, a, b, c] = accelerator.prepare(net, sgd, shared, unique);
  EXPECT_EQ(&a.optimizer(), &sgd);
  EXPECT_EQ(&b.optimizer(), shared.get());
  EXPECT_EQ(&c.optimizer(), unique.get());
  EXPECT_EQ(a.param_groups().size(), 1U);
}

TEST(Prepare, LbfgsWorksWithoutAScalerAndIsRefusedWithOne) {
  torch::manual_seed(0);
  torch::nn::Linear net(2, 1);
  torch::optim::LBFGS lbfgs(net->parameters(), torch::optim::LBFGSOptions(0.5));
  const auto x = torch::randn({16, 2});
  const auto y = x.matmul(torch::tensor({{1.0F}, {-2.0F}})) + 0.5;
  Accelerator accelerator(on_cpu(Precision::bf16));
  auto [model, optimizer] = accelerator.prepare(net, lbfgs);
  double loss = kInfinity;
  for (int i = 0; i < 10; ++i) {
    optimizer.step([&, &m = model, &o = optimizer] {
      o.zero_grad();
      const auto value = torch::mse_loss(m(x), y);
      accelerator.backward(value);
      loss = value.item<double>();
      return value;
    });
  }
  EXPECT_LT(loss, 1e-2);

  accelerator.set_gradient_accumulation_steps(2);
  EXPECT_TRUE(contains(error_of([&, &o = optimizer] { o.step([] { return torch::Tensor(); }); }),
                       "A closure cannot be used"));

  Accelerator fp16(on_cpu(Precision::fp16));
  EXPECT_TRUE(contains(error_of([&] { fp16.prepare(net, lbfgs); }), "LBFGS cannot be used"));
}

TEST(Prepare, AnOptimizerOfNoPreparedModelIsAnErrorAtItsFirstStep) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  Accelerator accelerator(on_cpu());
  const auto optimizer = accelerator.prepare(sgd);
  accelerator.backward(net(torch::ones({1, 2})).sum());
  const auto error = error_of([&] { optimizer.step(); });
  EXPECT_TRUE(contains(error, "belongs to a prepared model"));
  // The order of the calls does not matter: the model may come later.
  const auto model = accelerator.prepare(net);
  EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::submitted);

  const auto picture = torch::zeros({3}).requires_grad_();
  torch::optim::SGD over_picture({picture}, 1.0);
  const auto loose = accelerator.prepare_optimizer(over_picture, {.loose_parameters = true});
  accelerator.backward(picture.sum());
  EXPECT_EQ(loose.step().kind(), StepResult::Kind::submitted);
}

TEST(Prepare, SchedulesInEveryForm) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  torch::optim::StepLR torch_schedule(sgd, 1, 0.5);
  Accelerator accelerator(on_cpu());
  auto [model, optimizer, ours, torchs, plateau] = accelerator.prepare(
      net, sgd, accelerant::optim::step_decay(sgd, {.step_size = 1, .gamma = 0.1}), torch_schedule,
      accelerant::optim::ReduceLrOnPlateau(sgd, {.factor = 0.5, .patience = 0}));
  ours.step();
  EXPECT_DOUBLE_EQ(ours.get_last_lr().front(), 0.01);
  torchs.step();
  torchs.step();  // torch's own lags one step behind
  EXPECT_DOUBLE_EQ(torchs.get_last_lr().front(), 0.005);
  plateau.step(1.0);
  plateau.step(2.0);
  EXPECT_DOUBLE_EQ(plateau.get_last_lr().front(), 0.0025);

  EXPECT_TRUE(contains(error_of([&, &p = plateau] { p.step(); }), "needs a metric"));
  EXPECT_TRUE(contains(error_of([&, &o = ours] { o.step(1.0); }), "takes no metric"));
  EXPECT_EQ(torchs.state_dict().at("step_count"), 2);
  const auto state = ours.state_dict();
  ours.step();
  ours.load_state_dict(state);
  EXPECT_DOUBLE_EQ(ours.get_last_lr().front(), 0.01);
}

TEST(Prepare, TorchLoadersAreStreams) {
  auto torch_loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      torch::data::datasets::TensorDataset(torch::arange(7))
          .map(torch::data::transforms::Stack<torch::data::TensorExample>()),
      2);
  Accelerator accelerator(on_cpu(Precision::no, 3));
  const auto loader = accelerator.prepare(torch_loader);
  EXPECT_EQ(accelerator.prepare(*torch_loader).state(), loader.state());
  torch::nn::Linear net(1, 1);
  const auto model = accelerator.prepare(net);
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> sizes;
    std::vector<bool> ends;
    for (auto&& batch : loader) {
      const auto window = accelerator.accumulate(model);
      sizes.push_back(batch.data.size(0));
      ends.push_back(window.sync_gradients());
    }
    EXPECT_EQ(sizes, (std::vector<int64_t>{2, 2, 2, 1}));
    EXPECT_EQ(ends, (std::vector<bool>{false, false, true, true}));
  }
}

TEST(Prepare, JitModules) {
  torch::jit::Module net("net");
  net.register_attribute("training", c10::BoolType::get(), true);
  net.register_parameter("w", torch::full({2, 2}, 0.5).requires_grad_(), false);
  net.define(R"(
    def forward(self, x, scale: float = 1.0):
        y = torch.matmul(x, self.w) * scale
        return {"y": y}, (y, [y, y]), 3
  )");
  torch::optim::SGD sgd({net.attr("w").toTensor()}, 0.1);
  Accelerator accelerator(on_cpu(Precision::bf16));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  static_assert(std::is_same_v<decltype(model), Model<torch::jit::Module>>);
  EXPECT_EQ(accelerator.prepare(net), model);
  EXPECT_EQ(model.named_parameters().keys(), std::vector<std::string>{"w"});
  EXPECT_EQ(model.state_dict().keys(), std::vector<std::string>{"w"});
  model.eval();
  EXPECT_FALSE(net.is_training());
  model.train();

  const auto x = torch::randn({3, 2});
  const auto raw = net.forward({x}).toTuple()->elements()[1].toTuple()->elements()[0].toTensor();
  const auto output = model(x).toTuple();
  const auto y = output->elements()[0].toGenericDict().at("y").toTensor();
  EXPECT_EQ(y.scalar_type(), torch::kFloat32);
  EXPECT_FALSE(y.equal(raw));  // bfloat16 was really used
  EXPECT_TRUE(torch::allclose(y, raw, 2e-2, 2e-2));
  EXPECT_EQ(output->elements()[1].toTuple()->elements()[1].toTensorVector()[1].scalar_type(),
            torch::kFloat32);
  EXPECT_EQ(output->elements()[2].toInt(), 3);
  const auto doubled = model.forward({x, 2.0}).toTuple()->elements()[0].toGenericDict();
  EXPECT_TRUE(torch::allclose(doubled.at("y").toTensor(), 2 * y, 2e-2, 2e-2));

  accelerator.backward(y.sum());
  EXPECT_EQ(optimizer.step().kind(), StepResult::Kind::submitted);
  EXPECT_NE(net.attr("w").toTensor().detach().sum().item<float>(), 2.0F);
}

TEST(Prepare, DevicePlacementCanBeLeftToTheProgram) {
  torch::nn::Linear net(2, 1);
  Accelerator accelerator({.device_placement = false, .cpu = true});
  const auto model = accelerator.prepare(net);
  EXPECT_EQ(model(torch::ones({1, 2})).numel(), 1);
  if (!torch::cuda::is_available()) return;
  Accelerator gpu({.device_placement = false, .mixed_precision = Precision::bf16});
  EXPECT_TRUE(contains(error_of([&] { gpu.prepare(net); }), "wrong device for mixed precision"));
}

TEST(Prepare, OptimizerStateFollowsTheParameters) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  torch::nn::Linear net(2, 1);
  torch::optim::Adagrad adagrad(net->parameters(), 0.1);
  torch::optim::AdamW adamw(net->parameters(), 0.1);
  net(torch::ones({1, 2})).sum().backward();
  adamw.step();
  Accelerator accelerator;
  auto [a, model] = accelerator.prepare(adagrad, net);
  auto b = accelerator.prepare_optimizer(adamw, {.shared_parameters = true});
  accelerator.backward(model(torch::ones({1, 2}, torch::kCUDA)).sum());
  a.step();
  b.step();
  EXPECT_TRUE(net->weight.is_cuda());
}

}  // namespace
}  // namespace accelerator_test
