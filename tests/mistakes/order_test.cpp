// Calls that are missing, repeated or in the wrong order.
#include <gtest/gtest.h>

#include "mistakes/loops.h"

namespace mistakes {
namespace {

// --- Gradients -----------------------------------------------------------------------------------

TEST(Mistakes, ClippingByTorchUnderFp16) {
  for (const int64_t steps : {1, 2}) {
    OneWeight t(quiet_cpu(Precision::fp16, steps));
    const std::string said = said_by([&] {
      for (int64_t i = 0; i < 4 * steps; ++i) {
        auto window = t.accelerator.accumulate(t.model);
        t.backward(1);
        torch::nn::utils::clip_grad_norm_(t.net->parameters(), 1.0);
        t.optimizer.step();
        t.optimizer.zero_grad();
      }
    });
    EXPECT_TRUE(contains(said, "accelerator.clip_grad_norm_(model, 1.0)"));
    EXPECT_TRUE(contains(said, "accelerator.unscale_gradients()"));
    EXPECT_EQ(count(said, "loss scale"), 1);
  }
}

TEST(Mistakes, GradientsMayBeChangedWhenTheyAreUnscaled) {
  const auto train_with = [](const AcceleratorOptions& options, auto&& change) {
    OneWeight t(options);
    return said_by([&] {
      for (int i = 0; i < 4; ++i) {
        auto window = t.accelerator.accumulate(t.model);
        t.backward(1);
        change(t);
        t.optimizer.step();
        t.optimizer.zero_grad();
      }
    });
  };
  const auto by_torch = [](OneWeight& t) {
    torch::nn::utils::clip_grad_norm_(t.net->parameters(), 1.0);
  };
  EXPECT_EQ(train_with(quiet_cpu(Precision::fp16),
                       [&](OneWeight& t) {
                         t.accelerator.unscale_gradients();
                         by_torch(t);
                       }),
            "");
  EXPECT_EQ(train_with(quiet_cpu(Precision::fp16),
                       [](OneWeight& t) { t.accelerator.clip_grad_norm_(t.model, 0.1); }),
            "");
  EXPECT_EQ(train_with(quiet_cpu(), by_torch), "");
  EXPECT_EQ(
      train_with(without(&WarningOptions::scaled_gradients, quiet_cpu(Precision::fp16)), by_torch),
      "");
}

TEST(Mistakes, ZeroGradIsForgotten) {
  for (const int64_t steps : {1, 2}) {
    OneWeight t(quiet_cpu(Precision::no, steps));
    const std::string said = said_by([&] {
      for (int64_t i = 0; i < 4 * steps; ++i) {
        auto window = t.accelerator.accumulate(t.model);
        t.backward(1e-3);
        t.optimizer.step();
      }
    });
    EXPECT_TRUE(contains(said, "call optimizer.zero_grad()"));
    EXPECT_EQ(count(said, "already used"), 1);
  }
}

// The generator's backward adds to the critic's gradients, which zero_grad() clears before they
// are needed.
TEST(Mistakes, ZeroGradAtTheTopOfTheLoopIsToldNothing) {
  for (const bool by_module : {false, true}) {
    Gan gan(quiet_cpu());
    const std::string said = said_by([&] {
      for (int i = 0; i < 8; ++i) {
        by_module ? gan.critic_net->zero_grad() : gan.critic_optimizer.zero_grad();
        const torch::Tensor fake = gan.generator(scalar(1));
        gan.accelerator.backward(gan.critic(fake.detach()).sum());
        gan.critic_optimizer.step();
        by_module ? gan.generator_net->zero_grad() : gan.generator_optimizer.zero_grad();
        gan.accelerator.backward(gan.critic(fake).sum());
        gan.generator_optimizer.step();
      }
    });
    EXPECT_EQ(said, "");
  }
}

TEST(Mistakes, ClippingAfterTheStep) {
  for (const Precision precision : {Precision::no, Precision::fp16}) {
    OneWeight t(quiet_cpu(precision));
    const std::string said = said_by([&] {
      for (int i = 0; i < 4; ++i) {
        auto window = t.accelerator.accumulate(t.model);
        t.backward(1e-3);
        t.optimizer.step();
        t.accelerator.clip_grad_norm_(t.model, 1.0);
        t.optimizer.zero_grad();
      }
    });
    EXPECT_TRUE(contains(said, "clip_grad_norm_(model, 1.0); optimizer.step()"));
    EXPECT_EQ(count(said, "clipped after the step"), 1);
  }
}

TEST(Mistakes, ANormOfUsedGradientsIsToldNothing) {
  OneWeight t(quiet_cpu());
  const std::string said = said_by([&] {
    for (int i = 0; i < 4; ++i) {
      t.backward(1e-3);
      t.optimizer.step();
      t.accelerator.clip_grad_norm_(t.model, accelerator_test::kInfinity);
      t.optimizer.zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

TEST(Mistakes, StepTwiceUnderFp16) {
  OneWeight t(quiet_cpu(Precision::fp16));
  const std::string said = said_by([&] {
    t.backward(1);
    t.optimizer.step();
    t.optimizer.step();
  });
  EXPECT_TRUE(contains(said, "optimizer.step() was called twice"));
  EXPECT_TRUE(contains(said, "backward(loss) before each"));
  EXPECT_EQ(count(said, "update()"), 0);
}

TEST(Mistakes, BackwardOfAnotherAccelerator) {
  OneWeight t(quiet_cpu(Precision::fp16));
  Accelerator other(quiet_cpu());
  const std::string said = said_by([&] {
    other.backward(t.model(scalar(1)).sum());
    t.optimizer.step();
  });
  EXPECT_TRUE(contains(said, "another Accelerator"));
}

TEST(Mistakes, ALossWithoutAGraph) {
  OneWeight t(quiet_cpu());
  const std::string detached =
      said_by([&] { t.accelerator.backward(t.model(scalar(1)).sum().detach()); });
  EXPECT_TRUE(contains(detached, "requires no gradient"));
  EXPECT_TRUE(contains(detached, "detach()"));
  EXPECT_EQ(count(detached, "frame #"), 0);
}

TEST(Mistakes, ALossOfSeveralElements) {
  OneWeight t(quiet_cpu());
  const torch::Tensor x = torch::ones({3});
  const std::string said = said_by([&] { t.accelerator.backward(t.model(x)); });
  EXPECT_TRUE(contains(said, "[3]"));
  EXPECT_TRUE(contains(said, "loss.mean()"));
  EXPECT_EQ(said_by([&] { t.accelerator.backward(t.model(x), {.gradient = x}); }), "");
}

TEST(Mistakes, ALayerReplacedAfterTheOptimizerWasMade) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto trained = net->children().front();
  torch::nn::Sequential changed(std::dynamic_pointer_cast<torch::nn::LinearImpl>(trained),
                                torch::nn::Linear(2, 3));
  Accelerator accelerator(quiet_cpu());
  auto [model, optimizer] = accelerator.prepare(changed, sgd);
  const std::string said = said_by([&] {
    accelerator.backward(model(torch::ones({1, 2})).sum());
    optimizer.step();
  });
  EXPECT_TRUE(contains(said, "1.weight"));
  EXPECT_TRUE(contains(said, "when the model is complete"));
}

TEST(Mistakes, AHeadThatIsTrainedAloneIsToldNothing) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  torch::optim::SGD sgd(net->children().back()->parameters(), 0.1);
  Accelerator accelerator(quiet_cpu());
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const std::string said = said_by([&] {
    accelerator.backward(model(torch::ones({1, 2})).sum());
    optimizer.step();
  });
  EXPECT_EQ(said, "");
}

// --- Schedules -----------------------------------------------------------------------------------

TEST(Mistakes, SchedulerStepIsForgotten) {
  Scheduled s(quiet_cpu());
  const auto loader = s.t.accelerator.prepare(counting_loader(4));
  const std::string said = said_by([&] {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for ([[maybe_unused]] auto&& batch : loader) s.step();
    }
  });
  EXPECT_TRUE(contains(said, "call scheduler.step()"));
  EXPECT_EQ(count(said, "never stepped"), 1);
}

TEST(Mistakes, SchedulerStepIsForgottenInALongEpoch) {
  Scheduled s(quiet_cpu(), 10'000);
  const std::string said = said_by([&] {
    for (int i = 0; i < 120; ++i) s.step();
  });
  EXPECT_TRUE(contains(said, "call scheduler.step()"));
}

TEST(Mistakes, AScheduleByEpochsIsToldNothing) {
  Scheduled s(quiet_cpu());
  const auto loader = s.t.accelerator.prepare(counting_loader(4));
  const std::string said = said_by([&] {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for ([[maybe_unused]] auto&& batch : loader) s.step();
      s.scheduler.step();
    }
  });
  EXPECT_EQ(said, "");
}

TEST(Mistakes, SchedulerStepTwiceForAnUpdate) {
  for (const auto unit : {accelerant::ScheduleUnit::update, accelerant::ScheduleUnit::call}) {
    auto options = quiet_cpu();
    options.schedule_unit = unit;
    Scheduled s(options);
    const std::string said = said_by([&] {
      for (int i = 0; i < 3; ++i) {
        s.step();
        s.scheduler.step();
        s.scheduler.step();
      }
    });
    const bool is_mistake = unit == accelerant::ScheduleUnit::update;
    EXPECT_EQ(count(said, "twice for one update"), is_mistake ? 1 : 0);
  }
}

}  // namespace
}  // namespace mistakes
