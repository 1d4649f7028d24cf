// Mistakes in a training loop. Each is noticed once, and the message shows the line to write.
#include <gtest/gtest.h>

#include "mistakes/loops.h"

namespace mistakes {
namespace {

TEST(Mistakes, ALoopWithoutMistakesIsToldNothing) {
  for (const Precision precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const int64_t steps : {1, 4}) {
      OneWeight t(quiet_cpu(precision, steps));
      EXPECT_EQ(said_by([&] { train(t, 50 * steps); }), "");
    }
  }
}

// --- The original model in the loop --------------------------------------------------------------

void train_with_original_model(OneWeight& t) {
  for (int i = 0; i < 3; ++i) {
    auto window = t.accelerator.accumulate(t.model);
    t.accelerator.backward(t.net->forward(scalar(1)).sum());
    t.optimizer.step();
    t.optimizer.zero_grad();
  }
}

TEST(Mistakes, TheOriginalModelUnderMixedPrecision) {
  OneWeight t(quiet_cpu(Precision::bf16));
  const std::string said = said_by([&] { train_with_original_model(t); });
  EXPECT_TRUE(contains(said, "net->forward(x)"));
  EXPECT_TRUE(contains(said, "model(x)"));
  EXPECT_EQ(count(said, "net->forward(x)"), 1);
}

TEST(Mistakes, TheOriginalModelCanBeMeant) {
  OneWeight off(without(&WarningOptions::bypassed_model, quiet_cpu(Precision::bf16)));
  EXPECT_EQ(said_by([&] { train_with_original_model(off); }), "");
  OneWeight full(quiet_cpu());  // loses nothing
  EXPECT_EQ(said_by([&] { train_with_original_model(full); }), "");
  OneWeight scoped(quiet_cpu(Precision::bf16));
  const std::string said = said_by([&] {
    const auto scope = scoped.accelerator.autocast();
    train_with_original_model(scoped);
  });
  EXPECT_EQ(said, "");
}

// The second model takes part only in every other step.
TEST(Mistakes, AModelThatRestsIsNotMistakenForOne) {
  Accelerator accelerator(quiet_cpu(Precision::bf16));
  Scale a;
  Scale b;
  std::vector<torch::Tensor> both = a->parameters();
  both.push_back(b->w);
  torch::optim::SGD sgd(both, 0.1);
  auto [model_a, model_b, optimizer] = accelerator.prepare(a, b, sgd);
  const std::string said = said_by([&] {
    for (int i = 0; i < 6; ++i) {
      torch::Tensor loss = model_a(scalar(1)).sum();
      if (i % 2 == 0) loss = loss + model_b(scalar(1)).sum();
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

// --- The original optimizer in the loop ----------------------------------------------------------

TEST(Mistakes, TheOriginalOptimizer) {
  for (const Precision precision : {Precision::no, Precision::fp16}) {
    OneWeight t(quiet_cpu(precision));
    const std::string said = said_by([&] {
      for (int i = 0; i < 4; ++i) {
        auto window = t.accelerator.accumulate(t.model);
        t.backward(1e-3);
        t.sgd.step();
        t.sgd.zero_grad();
      }
    });
    EXPECT_TRUE(contains(said, "step() called on the original optimizer"));
    EXPECT_EQ(count(said, "optimizer.step()"), 1);
  }
}

TEST(Mistakes, AnOptimizerThatIsNotPreparedUnderFp16) {
  Accelerator accelerator(quiet_cpu(Precision::fp16));
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto model = accelerator.prepare(net);
  const std::string said = said_by([&] {
    for (int i = 0; i < 3; ++i) {
      accelerator.backward(model(scalar(1)).sum());
      sgd.step();
      sgd.zero_grad();
    }
  });
  EXPECT_TRUE(contains(said, "accelerator.prepare(net, adamw)"));
}

TEST(Mistakes, NoStepAtAll) {
  OneWeight t(quiet_cpu());
  const std::string said = said_by([&] {
    for (int i = 0; i < 120; ++i) t.backward(1);
  });
  EXPECT_TRUE(contains(said, "optimizer.step()"));
}

// --- Gradients from elsewhere --------------------------------------------------------------------

TEST(Mistakes, LossBackwardWithAccumulation) {
  OneWeight t(quiet_cpu(Precision::no, 2));
  const std::string said = said_by([&] {
    for (int i = 0; i < 4; ++i) {
      auto window = t.accelerator.accumulate(t.model);
      t.model(scalar(1)).sum().backward();
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
  });
  EXPECT_TRUE(contains(said, "accelerator.backward(loss)"));
}

TEST(Mistakes, LossBackwardUnderFp16) {
  OneWeight t(quiet_cpu(Precision::fp16));
  const std::string said = said_by([&] {
    t.model(scalar(1)).sum().backward();
    t.optimizer.step();
  });
  EXPECT_TRUE(contains(said, "accelerator.backward(loss)"));
}

TEST(Mistakes, ZeroGradOfTheModelInAWindow) {
  for (const bool set_to_none : {true, false}) {
    OneWeight t(quiet_cpu(Precision::no, 2));
    const std::string said = said_by([&] {
      for (int i = 0; i < 4; ++i) {
        auto window = t.accelerator.accumulate(t.model);
        t.backward(1);
        t.optimizer.step();
        t.net->zero_grad(set_to_none);
      }
    });
    EXPECT_TRUE(contains(said, "optimizer.zero_grad()"));
    EXPECT_TRUE(contains(said, "1 of 2 micro-steps"));
  }
}

TEST(Mistakes, ZeroGradBeforeStep) {
  for (const bool set_to_none : {true, false}) {
    OneWeight t(quiet_cpu());
    const std::string said = said_by([&] {
      for (int i = 0; i < 3; ++i) {
        auto window = t.accelerator.accumulate(t.model);
        t.backward(1);
        t.optimizer.zero_grad(set_to_none);
        t.optimizer.step();
      }
    });
    EXPECT_TRUE(contains(said, "optimizer.step(); optimizer.zero_grad()"));
  }
}

TEST(Mistakes, AnOptimizerOfOtherParameters) {
  Accelerator accelerator(quiet_cpu());
  Scale trained;
  Scale other;
  torch::optim::SGD sgd(other->parameters(), 0.1);
  auto [model, unused, optimizer] = accelerator.prepare(trained, other, sgd);
  const std::string said = said_by([&] {
    for (int i = 0; i < 3; ++i) {
      accelerator.backward(model(scalar(1)).sum());
      optimizer.step();
    }
  });
  EXPECT_TRUE(contains(said, "the model that is trained"));
}

TEST(Mistakes, StepWithoutBackward) {
  OneWeight t(quiet_cpu());
  const std::string said = said_by([&] {
    for (int i = 0; i < 3; ++i) t.optimizer.step();
  });
  EXPECT_TRUE(contains(said, "accelerator.backward(loss)"));
}

TEST(Mistakes, TwoOptimizersForOneParameter) {
  Accelerator accelerator(quiet_cpu());
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  torch::optim::Adam adam(net->parameters());
  const std::string said = said_by([&] { accelerator.prepare(net, sgd, adam); });
  EXPECT_TRUE(contains(said, "two optimizers"));
  EXPECT_TRUE(contains(said, "'w'"));
  EXPECT_NO_THROW(accelerator.prepare_optimizer(adam, {.shared_parameters = true}));
}

// --- Loops ---------------------------------------------------------------------------------------

TEST(Mistakes, FewerSamplesThanABatch) {
  Accelerator accelerator(quiet_cpu());
  const auto loader = accelerator.prepare(counting_loader(5, {.batch_size = 8, .drop_last = true}));
  const std::string said = said_by([&] {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for ([[maybe_unused]] auto&& batch : loader) ADD_FAILURE();
    }
  });
  EXPECT_TRUE(contains(said, "no batches"));
  EXPECT_TRUE(contains(said, "drop_last"));
  EXPECT_EQ(count(said, "no batches"), 1);
}

TEST(Mistakes, AModelThatIsNotPrepared) {
  Accelerator accelerator(quiet_cpu());
  Scale net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto optimizer = accelerator.prepare(sgd);
  const std::string said = said_by([&] {
    accelerator.backward(net->forward(scalar(1)).sum());
    optimizer.step();
  });
  EXPECT_TRUE(contains(said, "None of the optimizer's parameters belongs to a prepared model"));
}

TEST(Mistakes, ABatchSizeOfZero) {
  const std::string said = said_by([] { counting_loader(4, {.batch_size = 0}); });
  EXPECT_TRUE(contains(said, "batch_size"));
  EXPECT_TRUE(contains(said, "at least 1"));
}

TEST(Mistakes, RowsOfUnequalNumber) {
  const std::string said = said_by([] {
    accelerant::data::tensors(torch::zeros({4, 2}), torch::zeros({5}));
  });
  EXPECT_TRUE(contains(said, "4"));
  EXPECT_TRUE(contains(said, "5"));
}

TEST(Mistakes, ALoopInsideOfALoopOverTheSameLoader) {
  Accelerator accelerator(quiet_cpu());
  const auto loader = accelerator.prepare(counting_loader(4));
  const std::string said = said_by([&] {
    for ([[maybe_unused]] auto&& outer : loader) {
      for ([[maybe_unused]] auto&& inner : loader) break;
    }
  });
  EXPECT_TRUE(contains(said, "loop"));
}

TEST(Mistakes, AHandleThatOutlivesItsAccelerator) {
  Scale net;
  accelerant::Model<Scale> model;
  {
    Accelerator accelerator(quiet_cpu());
    model = accelerator.prepare(net);
  }
  const std::string said = said_by([&] { model(scalar(1)); });
  EXPECT_TRUE(contains(said, "outlived its Accelerator"));
}

TEST(Mistakes, AccumulateIsForgotten) {
  OneWeight t(quiet_cpu(Precision::no, 4));
  const std::string said = said_by([&] { t.backward(1); });
  EXPECT_TRUE(contains(said, "auto window = accelerator.accumulate(model);"));
}

TEST(Mistakes, AnInputOfTheWrongShape) {
  Accelerator accelerator(quiet_cpu());
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::ReLU(), torch::nn::Linear(9, 2));
  auto [model, loader] = accelerator.prepare(net, counting_loader(4));
  const std::string said = said_by([&] {
    for ([[maybe_unused]] auto&& batch : loader) model(torch::zeros({3, 4}));
  });
  EXPECT_TRUE(contains(said, "3x8 and 9x2"));
  EXPECT_TRUE(contains(said, "2.weight [2, 9]"));
  EXPECT_TRUE(contains(said, "epoch 0, the batch that ends at sample 1"));
}

}  // namespace
}  // namespace mistakes
