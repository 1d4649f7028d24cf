// FusedStepOptions::on_host: the same bits as the ordinary step on the CPU, through images of the
// parameters and states in host memory.
#include <accelerant/amp/grad_scaler.h>
#include <accelerant/core/failpoint.h>
#include <accelerant/optim/fused_step.h>
#include <accelerant/optim/lion.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <vector>

#include "optim/step_plan.h"
#include "support/expect_error.h"
#include "support/on_device.h"

namespace {

using accelerant::FusedStep;
using accelerant::FusedStepOptions;

class Apart {
 public:
  explicit Apart(bool on) { accelerant::optim::detail::images_on_every_device() = on; }
  ~Apart() { accelerant::optim::detail::images_on_every_device() = false; }
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;
};

// Contiguous, transposed, with gaps, empty, of one element, and longer than what is updated and
// sent as a whole.
std::vector<at::Tensor> parameters_of(at::ScalarType type, bool with_long) {
  torch::manual_seed(5);
  const auto made = [&](const at::Tensor& values) {
    return values.to(type).detach().requires_grad_();
  };
  std::vector<at::Tensor> parameters = {made(torch::randn({3, 5})), made(torch::randn({4, 6}).t()),
                                        made(torch::randn({0, 3})), made(torch::randn({}))};
  parameters.push_back(torch::randn({6, 8}).to(type).slice(1, 0, 8, 2).detach().requires_grad_());
  if (with_long) {
    parameters.push_back(made(torch::randn({(int64_t{8} << 20) + 17})));
    parameters.push_back(made(torch::randn({1000, 1000})));
  }
  parameters.push_back(made(torch::randn({20000})));
  return parameters;
}

using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

std::vector<Make> kinds() {
  using namespace torch::optim;
  return {[](auto of) { return std::make_unique<SGD>(of, SGDOptions(0.1)); },
          [](auto of) { return std::make_unique<SGD>(of, SGDOptions(0.1).momentum(0.9)); },
          [](auto of) { return std::make_unique<AdamW>(of, AdamWOptions(0.1)); },
          [](auto of) { return std::make_unique<accelerant::optim::Lion>(of, 0.01); }};
}

struct Case {
  at::ScalarType type = at::kFloat;
  bool with_long = false;
  bool clips = false;
  bool scales = false;
  FusedStepOptions options = {};
};

std::vector<at::Tensor> trained(const Make& make, const Case& how) {
  const auto parameters = parameters_of(how.type, how.with_long);
  const auto optimizer = make(parameters);
  FusedStep fused(*optimizer, how.options);
  accelerant::GradScaler scaler({.device = at::kCPU, .init_scale = 8, .enabled = how.scales});
  std::vector<at::Tensor> seen;
  for (int step = 0; step < 4; ++step) {
    torch::manual_seed(static_cast<uint64_t>(step));
    scaler.scale(torch::ones({}));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if ((step + i) % 4 == 3) {
        parameters[i].mutable_grad().reset();
        continue;
      }
      parameters[i].mutable_grad() = torch::randn(parameters[i].sizes()).to(how.type);
      if (how.scales && step == 2) parameters[i].mutable_grad().fill_(INFINITY);
    }
    fused.multiply_gradients(0.5);
    if (how.clips) seen.push_back(fused.clip_grad_norm_(1.0, scaler).clone());
    fused.step(scaler);
    if (scaler.is_enabled()) scaler.update();
    if (step == 1) {
      const torch::NoGradGuard no_grad;
      parameters[0].mul_(0.5);
    }
  }
  fused.sync();
  for (const at::Tensor& parameter : parameters) seen.push_back(parameter.detach());
  return seen;
}

TEST(HostStep, GivesTheSameBits) {
  for (const Make& make : kinds()) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const bool masters : {false, true}) {
        for (const bool clips : {false, true}) {
          for (const bool scales : {false, true}) {
            Case how{.type = type, .clips = clips, .scales = scales};
            how.options = {.master_weights = masters, .maximize = clips};
            const auto expected = trained(make, how);
            how.options.on_host = true;
            for (const bool apart : {false, true}) {
              const Apart scope(apart);
              const auto got = trained(make, how);
              ASSERT_EQ(got.size(), expected.size());
              for (std::size_t i = 0; i < got.size(); ++i) {
                EXPECT_TRUE(at::equal(got[i].isnan(), expected[i].isnan()) &&
                            got[i].nan_to_num().equal(expected[i].nan_to_num()))
                    << i;
              }
            }
          }
        }
      }
    }
  }
}

TEST(HostStep, SendsInParts) {
  Case how{.with_long = true};
  const auto expected = trained(kinds()[2], how);
  how.options.on_host = true;
  const Apart scope(true);
  const auto got = trained(kinds()[2], how);
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
}

class HostStepOnDevice : public OnDevice {};

// Without an Accelerator, gradients are fetched by the step.
TEST_P(HostStepOnDevice, KeepsStatesInHostMemory) {
  const Apart scope(!on_cuda());
  const at::Tensor parameter = full({3, 5}, 1).requires_grad_();
  const at::Tensor plain = torch::ones({3, 5}).requires_grad_();
  torch::optim::AdamW adamw({parameter}, 0.1), reference({plain}, 0.1);
  FusedStep fused(adamw, {.on_host = true});
  FusedStep ordinary(reference);
  for (int i = 0; i < 3; ++i) {
    torch::manual_seed(static_cast<uint64_t>(i));
    plain.mutable_grad() = torch::randn({3, 5});
    parameter.mutable_grad() = plain.grad().to(device());
    fused.step();
    ordinary.step();
  }
  EXPECT_EQ(parameter.device().type(), GetParam());
  EXPECT_TRUE(parameter.cpu().equal(plain));
  const auto& state = static_cast<torch::optim::AdamWParamState&>(
      *adamw.state().at(parameter.unsafeGetTensorImpl()));
  EXPECT_TRUE(state.exp_avg().is_cpu());
}

ON_EVERY_DEVICE(HostStepOnDevice);

// Whoever offloads parameters tells aliases by the owners of their memory.
TEST(HostStep, OwnsNoMemoryOfParametersThatItSends) {
  const Apart scope(true);
  const at::Tensor parameter = torch::ones({3, 5}).requires_grad_();
  torch::optim::AdamW adamw({parameter}, 0.1);
  FusedStep fused(adamw, {.on_host = true});
  const auto before = parameter.storage().use_count();
  parameter.mutable_grad() = torch::ones({3, 5});
  fused.step();
  EXPECT_EQ(parameter.storage().use_count(), before);
  // Other memory is noticed all the same.
  parameter.set_data(torch::full({3, 5}, 7.0));
  fused.step();
  EXPECT_NEAR(parameter.max().item<double>(), 7 - 0.1 - 7 * 0.1 * 0.01, 1e-3);
}

TEST(HostStep, AfterAFailureInTheMiddleNoStepFollows) {
  const Apart scope(true);
  std::vector<at::Tensor> parameters = parameters_of(at::kFloat, /*with_long=*/true);
  torch::optim::AdamW adamw(parameters, 0.1);
  FusedStep fused(adamw, {.on_host = true});
  for (at::Tensor& parameter : parameters) parameter.mutable_grad() = torch::ones_like(parameter);
  ::setenv("ACCELERANT_FAILPOINT", "optim.send:throw@2", 1);
  accelerant::reload_failpoints();
  EXPECT_TRUE(contains(whole_error_of([&] { fused.step(); }), "optim.send"));
  ::unsetenv("ACCELERANT_FAILPOINT");
  accelerant::reload_failpoints();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(contains(whole_error_of([&] { fused.step(); }), "has failed in the middle"));
  }
  fused.reload();  // as after loading a checkpoint
  fused.step();
}

TEST(HostStep, RefusesParametersThatShareMemory) {
  const Apart scope(true);
  const at::Tensor whole = torch::ones({4, 6}).requires_grad_();
  const at::Tensor alias = whole.detach().narrow(0, 1, 2).requires_grad_();
  torch::optim::SGD sgd({whole, alias}, 0.1);
  FusedStep fused(sgd, {.on_host = true});
  whole.mutable_grad() = torch::ones({4, 6});
  alias.mutable_grad() = torch::ones({2, 6});
  EXPECT_TRUE(contains(whole_error_of([&] { fused.step(); }), "share memory"));
  // Side by side in one storage, as the weights of recurrent layers.
  const at::Tensor both = torch::ones({4, 6});
  const at::Tensor first = both.narrow(0, 0, 2).detach().requires_grad_();
  const at::Tensor second = both.narrow(0, 2, 2).detach().requires_grad_();
  torch::optim::SGD other({first, second}, 0.1);
  FusedStep allowed(other, {.on_host = true});
  first.mutable_grad() = torch::ones({2, 6});
  second.mutable_grad() = torch::ones({2, 6});
  allowed.step();
  EXPECT_TRUE(both.allclose(torch::full({4, 6}, 0.9)));
}

TEST(HostStep, RefusesWhatItCannotStep) {
  const at::Tensor parameter = torch::ones({3, 2}).requires_grad_();
  torch::optim::SGD sgd({parameter}, 0.1);
  FusedStep fused(sgd, {.on_host = true});
  parameter.mutable_grad() = torch::ones({3, 2}).to_sparse();
  EXPECT_TRUE(contains(whole_error_of([&] { fused.step(); }), "layout Sparse"));
  EXPECT_TRUE(contains(whole_error_of([&] { fused.step([] { return at::Tensor(); }); }),
                       "A closure cannot be used"));
  torch::optim::LBFGS lbfgs({parameter});
  EXPECT_TRUE(FusedStep::why_not(lbfgs, {.on_host = true}).has_value());
}

}  // namespace
