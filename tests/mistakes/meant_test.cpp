// Programs that look like mistakes but are not: they are told nothing.
#include <gtest/gtest.h>

#include "mistakes/loops.h"

namespace mistakes {
namespace {

// A Wasserstein GAN: the critic's weights are clamped before its own backward.
TEST(Mistakes, AGanIsToldNothing) {
  Accelerator accelerator(quiet_cpu(Precision::bf16));
  Scale generator_net;
  Scale critic_net;
  torch::optim::SGD generator_sgd(generator_net->parameters(), 0.1);
  torch::optim::SGD critic_sgd(critic_net->parameters(), 0.1);
  auto [generator, critic, generator_optimizer, critic_optimizer] =
      accelerator.prepare(generator_net, critic_net, generator_sgd, critic_sgd);
  const std::string said = said_by([&] {
    for (int i = 0; i < 8; ++i) {
      {
        const torch::NoGradGuard no_grad;
        critic_net->w.clamp_(-0.5, 0.5);
      }
      const torch::Tensor fake = generator(scalar(1));
      accelerator.backward(critic(fake.detach()).sum());
      critic_optimizer.step();
      critic_optimizer.zero_grad();
      accelerator.backward(critic(fake).sum());
      generator_optimizer.step();
      generator_optimizer.zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

// Sharpness-aware minimisation: a backward, a move along it, a second backward, and back.
TEST(Mistakes, SharpnessAwareMinimisationIsToldNothing) {
  OneWeight t(quiet_cpu());
  const std::string said = said_by([&] {
    for (int i = 0; i < 8; ++i) {
      t.backward(1);
      const torch::Tensor move = t.net->w.grad() * 0.1;
      {
        const torch::NoGradGuard no_grad;
        t.net->w.add_(move);
      }
      t.net->zero_grad();
      t.backward(1);
      {
        const torch::NoGradGuard no_grad;
        t.net->w.sub_(move);
      }
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

TEST(Mistakes, OptimizersThatShareParametersOnPurposeAreToldNothing) {
  OneWeight t(quiet_cpu());
  torch::optim::Adam adam(t.net->parameters());
  auto rarely = t.accelerator.prepare_optimizer(adam, {.shared_parameters = true});
  const std::string said = said_by([&] {
    train(t, 10);
    t.backward(1);
    rarely.step();
  });
  EXPECT_EQ(said, "");
}

TEST(Mistakes, LbfgsIsToldNothing) {
  Accelerator accelerator(quiet_cpu());
  Scale net;
  torch::optim::LBFGS lbfgs(net->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(4));
  auto [model, optimizer] = accelerator.prepare(net, lbfgs);
  const std::string said = said_by([&, &model = model, &optimizer = optimizer] {
    for (int i = 0; i < 3; ++i) {
      optimizer.step([&] {
        net->zero_grad();
        const torch::Tensor loss = (model(scalar(1)) - 3).pow(2).sum();
        accelerator.backward(loss);
        return loss;
      });
    }
  });
  EXPECT_EQ(said, "");
}

TEST(Mistakes, GradientsChangedOnPurposeInAWindowAreToldNothing) {
  OneWeight t(quiet_cpu(Precision::no, 2));
  const std::string said = said_by([&] {
    for (int i = 0; i < 8; ++i) {
      auto window = t.accelerator.accumulate(t.model);
      t.backward(1);
      {
        const torch::NoGradGuard no_grad;
        t.net->w.grad().add_(1e-3);  // noise, say
      }
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

TEST(Mistakes, ParametersMayChangeAfterAStep) {
  OneWeight t(quiet_cpu());
  const std::string said = said_by([&] {
    for (int i = 0; i < 4; ++i) {
      train(t, 1);
      const torch::NoGradGuard no_grad;
      t.net->w.clamp_(-0.5, 0.5);
    }
  });
  EXPECT_EQ(said, "");
}

TEST(Mistakes, GradientsOfOnesOwnAreFineInFloat32) {
  OneWeight t(quiet_cpu());
  const std::string said = said_by([&] {
    for (int i = 0; i < 3; ++i) {
      t.net->w.mutable_grad() = torch::ones({1});
      t.optimizer.step();
      t.optimizer.zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace mistakes
