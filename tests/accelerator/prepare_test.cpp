// Accelerator::prepare, the models it returns, and how long they live.
#include <gtest/gtest.h>

#include <type_traits>

#include "accelerator/helpers.h"
#include "support/expect_error.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Model;
using accelerant::Optimizer;
using accelerant::Precision;
using accelerant::Scheduler;

TEST(Prepare, ReturnsTheObjectsInTheOrderGiven) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto cosine = accelerant::optim::cosine_with_warmup(sgd, {.warmup_steps = 1, .total_steps = 4});
  const auto batches = counting_loader(4);
  Accelerator accelerator(on_cpu());

  auto [scheduler, loader, optimizer, model] = accelerator.prepare(cosine, batches, sgd, net);
  static_assert(std::is_same_v<decltype(model), Model<torch::nn::Linear>>);
  static_assert(std::is_same_v<decltype(optimizer), Optimizer>);
  static_assert(std::is_same_v<decltype(scheduler), Scheduler>);
  static_assert(std::is_same_v<decltype(loader), std::remove_const_t<decltype(batches)>>);
  EXPECT_EQ(model.module().ptr(), net.ptr());
  EXPECT_EQ(&optimizer.optimizer(), &sgd);
  EXPECT_EQ(scheduler.get_last_lr(), std::vector<double>{0.0});
}

TEST(Prepare, OneObjectComesBackBare) {
  torch::nn::Linear net(2, 1);
  Accelerator accelerator(on_cpu());
  static_assert(std::is_same_v<decltype(accelerator.prepare(net)), Model<torch::nn::Linear>>);
  EXPECT_EQ(accelerator.prepare(net)(torch::ones({3, 2})).sizes(), (std::vector<int64_t>{3, 1}));
}

TEST(Prepare, SeveralOfAKind) {
  torch::nn::Linear a(2, 1);
  torch::nn::Linear b(3, 1);
  torch::optim::SGD sgd(a->parameters(), 0.1);
  torch::optim::Adam adam(b->parameters(), 0.1);
  Accelerator accelerator(on_cpu());
  auto [ma, mb, oa, ob] = accelerator.prepare(a, b, sgd, adam);
  EXPECT_EQ(ma.module().ptr(), a.ptr());
  EXPECT_EQ(mb.module().ptr(), b.ptr());
  EXPECT_EQ(&oa.optimizer(), &sgd);
  EXPECT_EQ(&ob.optimizer(), &adam);
}

TEST(Prepare, TwiceGivesTheSameObject) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto constant = accelerant::optim::constant(sgd);
  const auto batches = counting_loader(4);
  Accelerator accelerator(on_cpu());
  auto [model, optimizer, loader, scheduler] = accelerator.prepare(net, sgd, batches, constant);

  EXPECT_EQ(accelerator.prepare(net), model);
  EXPECT_EQ(accelerator.prepare(sgd), optimizer);
  EXPECT_EQ(accelerator.prepare(batches).state(), loader.state());
  EXPECT_EQ(accelerator.prepare(constant), scheduler);
  // Prepared objects pass through.
  EXPECT_EQ(accelerator.prepare(model), model);
  EXPECT_EQ(accelerator.prepare(optimizer), optimizer);
  EXPECT_EQ(accelerator.prepare(loader).state(), loader.state());
  EXPECT_EQ(accelerator.prepare(scheduler), scheduler);
  EXPECT_NE(accelerator.prepare_model(torch::nn::Linear(2, 1)).module().ptr(), net.ptr());
}

TEST(Prepare, ModulesInEveryForm) {
  Accelerator accelerator(on_cpu());
  const auto x = torch::ones({1, 2});

  Flexible object;
  const Model<Flexible> borrowed = accelerator.prepare(object);
  EXPECT_EQ(&borrowed.module(), &object);

  const auto pointer = std::make_shared<Flexible>();
  const Model<Flexible> shared = accelerator.prepare(pointer);
  EXPECT_EQ(&shared.module(), pointer.get());
  EXPECT_TRUE(shared(x).equal(pointer->forward(x)));

  const Model<torch::nn::Sequential> sequential =
      accelerator.prepare(torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::ReLU()));
  EXPECT_EQ(sequential(x).size(1), 3);
}

TEST(Prepare, ForwardIsCalledLikeTheOriginal) {
  Flexible net;
  Accelerator accelerator(on_cpu());
  const auto model = accelerator.prepare(net);
  const auto x = torch::randn({4, 2});
  EXPECT_TRUE(model(x).equal(net.forward(x)));
  EXPECT_TRUE(model(x, 3.0).equal(net.forward(x, 3.0)));
  EXPECT_TRUE(model.forward(x, 3.0, true).equal(net.forward(x, 3.0, true)));
  EXPECT_EQ(model(int64_t{4}), 5);
  std::vector<int> out;
  model(out);  // by reference, without a result
  EXPECT_EQ(out.size(), 1U);
}

TEST(Prepare, HandlesCanBeMembersAndStartEmpty) {
  struct Trainer {
    Model<torch::nn::Linear> model;
    Optimizer optimizer;
    Scheduler scheduler;
  };
  const Trainer trainer;
  EXPECT_TRUE(contains(error_of([&] { trainer.model(torch::ones({1, 2})); }), "An empty Model"));
  EXPECT_TRUE(contains(error_of([&] { trainer.optimizer.step(); }), "An empty Optimizer"));
  EXPECT_TRUE(contains(error_of([&] { trainer.scheduler.step(); }), "An empty Scheduler"));
  const torch::nn::Linear nothing = nullptr;
  EXPECT_TRUE(contains(error_of([&] { Accelerator(on_cpu()).prepare(nothing); }), "empty model"));
}

TEST(Prepare, ModelsShowTheirParametersAndModes) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  Accelerator accelerator(on_cpu());
  const auto model = accelerator.prepare(net);
  EXPECT_EQ(model.parameters().size(), 4U);
  EXPECT_EQ(model.named_parameters().keys().front(), "0.weight");
  EXPECT_EQ(model.buffers().size(), 3U);
  EXPECT_TRUE(model.is_training());
  model.eval();
  EXPECT_FALSE(net->is_training());
  model.train();
  EXPECT_TRUE(net->is_training());
  model.to(torch::kFloat64);
  EXPECT_EQ(net->parameters().front().scalar_type(), torch::kFloat64);
}

TEST(Prepare, StateDictsRoundTrip) {
  torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  torch::nn::Sequential other(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3));
  Accelerator accelerator(on_cpu());
  auto [a, b] = accelerator.prepare(net, other);
  const std::vector<std::string> names = {"0.weight",
                                          "0.bias",
                                          "1.weight",
                                          "1.bias",
                                          "1.running_mean",
                                          "1.running_var",
                                          "1.num_batches_tracked"};
  EXPECT_EQ(a.state_dict().keys(), names);
  b.load_state_dict(a.state_dict());
  for (const auto& item : a.state_dict()) {
    EXPECT_TRUE(b.state_dict()[item.key()].equal(item.value())) << item.key();
  }
}

TEST(Prepare, AStateThatDoesNotFitChangesNothing) {
  torch::nn::Linear net(2, 3);
  Accelerator accelerator(on_cpu());
  const auto model = accelerator.prepare(net);
  const auto before = net->weight.detach().clone();
  accelerant::StateDict state;
  state.insert("weight", torch::zeros({2, 2}));
  state.insert("other", torch::zeros({1}));
  const auto error = whole_error_of([&] { model.load_state_dict(state); });
  EXPECT_TRUE(contains(error, "missing: bias"));
  EXPECT_TRUE(contains(error, "unexpected: other"));
  EXPECT_TRUE(contains(error, "weight: expected [3, 2], got [2, 2]"));
  EXPECT_TRUE(net->weight.equal(before));
  state["weight"] = torch::zeros({3, 2});
  model.load_state_dict(state, /*strict=*/false);
  EXPECT_EQ(net->weight.abs().sum().item<float>(), 0.0F);
}

TEST(Prepare, AHandleThatOutlivesItsAcceleratorIsAnError) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto accelerator = std::make_unique<Accelerator>(on_cpu());
  auto [model, optimizer] = accelerator->prepare(net, sgd);
  accelerator.reset();
  EXPECT_TRUE(contains(error_of([&, &m = model] { m(torch::ones({1, 2})); }), "outlived"));
  EXPECT_TRUE(contains(error_of([&, &o = optimizer] { o.step(); }), "outlived"));
  sgd.step();  // the borrowed objects are unchanged
  EXPECT_EQ(net(torch::ones({1, 2})).numel(), 1);
}

TEST(Prepare, FreeMemoryForgetsEverything) {
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  Accelerator accelerator(on_cpu());
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto copy = model;
  accelerator.free_memory(model, optimizer);
  EXPECT_TRUE(contains(error_of([&, &m = model] { m(torch::ones({1, 2})); }), "empty Model"));
  EXPECT_TRUE(contains(error_of([&] { copy(torch::ones({1, 2})); }), "free_memory()"));
  const auto again = accelerator.prepare(net);  // can be prepared again
  EXPECT_EQ(again(torch::ones({1, 2})).numel(), 1);
}

// As in cross-validation: everything but the Accelerator is local, and may be at the same addresses
// as before.
TEST(Prepare, ObjectsMayBeLocalToAFunction) {
  for (const auto precision : {Precision::no, Precision::fp16}) {
    auto options = on_cpu(precision, 2);
    options.scaler = {.init_scale = 128};
    Accelerator accelerator(options);
    const auto train = [&](int64_t inputs) {
      Flexible net;
      net.linear = net.replace_module("linear", torch::nn::Linear(inputs, 1));
      torch::optim::SGD sgd(net.parameters(), 1.0);
      auto constant = accelerant::optim::constant(sgd);
      auto [model, optimizer, scheduler, loader] =
          accelerator.prepare(net, sgd, constant, counting_loader(3));
      const auto before = net.linear->bias.item<float>();
      for (auto&& [x] : loader) {
        {
          const auto window = accelerator.accumulate(model);
          accelerator.backward(model(x.expand({1, inputs}), 1.0).sum());
          accelerator.clip_grad_norm_(model, 1e9);
        }
        optimizer.step();  // leaves a scaler update to the next backward
        scheduler.step();
        optimizer.zero_grad();
      }
      EXPECT_EQ(constant.last_step(), 2);
      EXPECT_FLOAT_EQ(net.linear->bias.item<float>(), before - 2.0F);
    };
    for (const int64_t inputs : {1, 2, 3}) train(inputs);
  }
}

TEST(Prepare, LoadersCanBeEmptiedToo) {
  Accelerator accelerator(on_cpu());
  auto loader = accelerator.prepare(counting_loader(3));
  accelerator.free_memory(loader);
  EXPECT_TRUE(contains(error_of([&] { loader.length(); }), "An empty Loader"));
  EXPECT_TRUE(contains(error_of([&] { loader.begin(); }), "An empty Loader"));
}

}  // namespace
}  // namespace accelerator_test
