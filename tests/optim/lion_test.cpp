// Lion by itself.
#include <accelerant/optim/lion.h>
#include <accelerant/optim/optimizer_state.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "support/expect_error.h"

namespace {

using accelerant::optim::Lion;
using accelerant::optim::LionOptions;

TEST(Lion, StepsBySign) {
  at::Tensor parameter = torch::tensor({1.0F, 2.0F, 3.0F}).requires_grad_();
  Lion lion({parameter}, LionOptions(0.1).betas({0.5, 0.8}).weight_decay(0.5));
  parameter.mutable_grad() = torch::tensor({4.0F, -0.001F, 0.0F});
  lion.step();
  EXPECT_TRUE(torch::allclose(parameter, torch::tensor({0.85F, 2.0F, 2.85F})));
  // The averages are now 0.8, -0.0002 and 0; half of them and half of these gradients:
  parameter.mutable_grad() = torch::tensor({-0.7F, -1.0F, 1.0F});
  lion.step();
  EXPECT_TRUE(torch::allclose(parameter, torch::tensor({0.7075F, 2.0F, 2.6075F})));
}

TEST(Lion, IsSavedByTorchAndByName) {
  const auto make = [](at::Tensor& parameter) {
    return std::make_unique<Lion>(std::vector<at::Tensor>{parameter},
                                  LionOptions(0.1).weight_decay(0.25));
  };
  at::Tensor first = torch::ones({3}).requires_grad_();
  const auto lion = make(first);
  first.mutable_grad() = torch::tensor({1.0F, 2.0F, -3.0F});
  lion->step();
  for (const bool by_torch : {true, false}) {
    at::Tensor second = first.detach().clone().requires_grad_();
    const auto other = std::make_unique<Lion>(std::vector<at::Tensor>{second});
    if (by_torch) {
      std::stringstream archive;
      torch::save(*lion, archive);
      torch::load(*other, archive);
    } else {
      const auto saved = accelerant::optim::optimizer_state_dict(*lion, {});
      EXPECT_EQ(saved.values["kind"], "Lion");
      ASSERT_NE(saved.tensors.find("exp_avg.group.0.0"), nullptr);
      accelerant::optim::load_optimizer_state_dict(*other, {}, saved);
    }
    at::Tensor control = first.detach().clone().requires_grad_();
    const auto continued = make(control);
    accelerant::optim::load_optimizer_state_dict(
        *continued, {}, accelerant::optim::optimizer_state_dict(*lion, {}));
    second.mutable_grad() = control.mutable_grad() = torch::tensor({-0.1F, -0.1F, 0.1F});
    other->step();
    continued->step();
    EXPECT_TRUE(torch::equal(second, control));
  }
}

TEST(Lion, RefusesWhatCannotWork) {
  at::Tensor parameter = torch::ones({3}).requires_grad_();
  const auto refusal = [&](const LionOptions& options) {
    return whole_error_of([&] { Lion lion({parameter}, options); });
  };
  EXPECT_TRUE(contains(refusal(LionOptions(-1.0)), "learning rate"));
  EXPECT_TRUE(contains(refusal(LionOptions().weight_decay(-1.0)), "weight decay"));
  EXPECT_TRUE(contains(refusal(LionOptions().betas({0.9, 1.0})), "beta"));
}

}  // namespace
