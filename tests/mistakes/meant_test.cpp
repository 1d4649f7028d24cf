// Programs that look like mistakes but are not: they are told nothing.
#include <gtest/gtest.h>

#include "mistakes/loops.h"

namespace mistakes {
namespace {

// A Wasserstein GAN: the critic's weights are clamped before its own backward.
TEST(Mistakes, AGanIsToldNothing) {
  Gan gan(quiet_cpu(Precision::bf16));
  const std::string said = said_by([&] {
    for (int i = 0; i < 8; ++i) {
      {
        const torch::NoGradGuard no_grad;
        gan.critic_net->w.clamp_(-0.5, 0.5);
      }
      const torch::Tensor fake = gan.generator(scalar(1));
      gan.accelerator.backward(gan.critic(fake.detach()).sum());
      gan.critic_optimizer.step();
      gan.critic_optimizer.zero_grad();
      gan.accelerator.backward(gan.critic(fake).sum());
      gan.generator_optimizer.step();
      gan.generator_optimizer.zero_grad();
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

// --- Gradients -----------------------------------------------------------------------------------

// The critic is frozen while the generator trains, and the module clears its gradients.
TEST(Mistakes, ACriticThatIsFrozenMeanwhileIsToldNothing) {
  Gan gan(quiet_cpu());
  const std::string said = said_by([&] {
    for (int i = 0; i < 8; ++i) {
      gan.critic_net->w.requires_grad_(true);
      gan.critic_net->zero_grad();
      const torch::Tensor fake = gan.generator(scalar(1));
      gan.accelerator.backward(gan.critic(fake.detach()).sum());
      gan.critic_optimizer.step();
      gan.critic_net->w.requires_grad_(false);
      gan.generator_net->zero_grad();
      gan.accelerator.backward(gan.critic(fake).sum());
      gan.generator_optimizer.step();
    }
  });
  EXPECT_EQ(said, "");
}

// The allocator gives each gradient the address of the one before.
TEST(Mistakes, ClippingWithAModuleThatClearsItsGradientsIsToldNothing) {
  Accelerator accelerator(quiet_cpu());
  Scale net;
  torch::optim::AdamW adamw(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const std::string said = said_by([&, &model = model, &optimizer = optimizer] {
    for (int i = 0; i < 8; ++i) {
      accelerator.backward(model(scalar(1)).sum());
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      net->zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

// One clipping for a trunk and two heads, of which only one is trained at a time.
TEST(Mistakes, ClippingTheStaleGradientsOfAnotherHeadIsToldNothing) {
  Accelerator accelerator(quiet_cpu());
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 1),
                            torch::nn::Linear(2, 1));
  const auto parts = net->children();
  torch::optim::SGD trunk_sgd(parts[0]->parameters(), 0.1);
  std::vector<std::unique_ptr<torch::optim::SGD>> head_sgds;
  for (int head = 0; head < 2; ++head) {
    head_sgds.push_back(std::make_unique<torch::optim::SGD>(parts[1 + head]->parameters(), 0.1));
  }
  auto [model, trunk, first, second] =
      accelerator.prepare(net, trunk_sgd, *head_sgds[0], *head_sgds[1]);
  std::vector heads = {first, second};
  const std::string said = said_by([&, &model = model, &trunk = trunk] {
    for (std::size_t i = 0; i < 8; ++i) {
      auto& head = heads[i % 2];
      trunk.zero_grad();
      head.zero_grad();
      const auto hidden = parts[0]->as<torch::nn::Linear>()->forward(torch::ones({1, 2}));
      accelerator.backward(parts[1 + i % 2]->as<torch::nn::Linear>()->forward(hidden).sum());
      accelerator.clip_grad_norm_(model, 1.0);
      trunk.step();
      head.step();
    }
  });
  EXPECT_EQ(said, "");
}

TEST(Mistakes, MaskingGradientsUnderFp16IsToldNothing) {
  Accelerator accelerator(quiet_cpu(Precision::fp16));
  torch::nn::Linear net(4, 4);
  torch::optim::SGD sgd(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const std::string said = said_by([&, &model = model, &optimizer = optimizer] {
    for (int i = 0; i < 4; ++i) {
      accelerator.backward(model(torch::ones({1, 4})).sum());
      {
        const torch::NoGradGuard no_grad;
        net->weight.grad()[0].zero_();
      }
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

// A teacher that is prepared but not trained, and a criterion with a parameter of its own.
TEST(Mistakes, ATeacherAndACriterionWithParametersAreToldNothing) {
  Accelerator accelerator(quiet_cpu());
  Scale student_net;
  Scale teacher_net;
  Scale temperature;
  auto parameters = student_net->parameters();
  parameters.push_back(temperature->w);
  torch::optim::SGD sgd(parameters, 0.1);
  auto [student, teacher, optimizer] = accelerator.prepare(student_net, teacher_net, sgd);
  const std::string said = said_by([&] {
    for (int i = 0; i < 3; ++i) {
      const torch::Tensor target = teacher(scalar(1)).detach();
      accelerator.backward((student(scalar(2)) * temperature->w - target).pow(2).sum());
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

// --- Schedules -----------------------------------------------------------------------------------

// Two loaders in an epoch, and a schedule that counts epochs.
TEST(Mistakes, TwoLoadersInAnEpochAreToldNothing) {
  Scheduled s(quiet_cpu());
  const auto first = s.t.accelerator.prepare(counting_loader(4));
  const auto second = s.t.accelerator.prepare(counting_loader(4));
  const std::string said = said_by([&] {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for ([[maybe_unused]] auto&& batch : first) s.step();
      for ([[maybe_unused]] auto&& batch : second) s.step();
      s.scheduler.step();
    }
  });
  EXPECT_EQ(said, "");
}

TEST(Mistakes, AScheduleThatIsPreparedLaterIsToldNothing) {
  OneWeight t(quiet_cpu());
  const auto loader = t.accelerator.prepare(counting_loader(4));
  const std::string said = said_by([&] {
    for (int epoch = 0; epoch < 3; ++epoch) {
      for ([[maybe_unused]] auto&& batch : loader) train(t, 1);
    }
    auto cosine = accelerant::optim::cosine_with_warmup(t.sgd, {.total_steps = 10'000});
    auto scheduler = t.accelerator.prepare(cosine);
    for ([[maybe_unused]] auto&& batch : loader) {
      train(t, 1);
      scheduler.step();
    }
  });
  EXPECT_EQ(said, "");
}

// A step for every fourth batch, by hand, and a schedule made in batches.
TEST(Mistakes, ABatchwiseScheduleWithAccumulationByHandIsToldNothing) {
  Scheduled s(quiet_cpu(), 100);
  const std::string said = said_by([&] {
    for (int i = 0; i < 16; ++i) {
      s.t.backward(1e-3);
      s.scheduler.step();
      if (i % 4 != 3) continue;
      s.t.optimizer.step();
      s.t.optimizer.zero_grad();
    }
  });
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace mistakes
