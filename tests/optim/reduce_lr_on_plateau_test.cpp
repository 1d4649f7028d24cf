// schedule_fuzz_test.py compares the rule itself with torch's.
#include "accelerant/optim/lr_scheduler.h"

#include <torch/torch.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "support/expect_error.h"

namespace {

using accelerant::optim::ReduceLrOnPlateau;
using Options = ReduceLrOnPlateau::Options;

class Plateau : public testing::Test {
 protected:
  Plateau() {
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(
        {torch::zeros({1}).requires_grad_()}, std::make_unique<torch::optim::SGDOptions>(0.5)));
  }

  std::vector<double> rates() const {
    return {optimizer.param_groups()[0].options().get_lr(),
            optimizer.param_groups()[1].options().get_lr()};
  }

  std::string refusal(const Options& options) {
    return whole_error_of([&] { ReduceLrOnPlateau scheduler(optimizer, options); });
  }

  torch::optim::SGD optimizer{{torch::zeros({1}).requires_grad_()}, 1.0};
};

using Rates = std::vector<double>;

TEST_F(Plateau, LowersAfterPatience) {
  ReduceLrOnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 1, .min_lr = {0.0, 0.5}});
  EXPECT_EQ(rates(), (Rates{1.0, 0.5}));  // creating it changes nothing
  scheduler.step(3.0);
  scheduler.step(3.0);
  EXPECT_EQ(rates(), (Rates{1.0, 0.5}));
  scheduler.step(3.0);
  EXPECT_EQ(rates(), (Rates{0.5, 0.5}));
  EXPECT_EQ(scheduler.get_last_lr(), rates());
  EXPECT_EQ(scheduler.best(), 3.0);
  EXPECT_EQ(scheduler.last_step(), 3);
}

TEST_F(Plateau, NanIsNoImprovement) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  ReduceLrOnPlateau scheduler(optimizer, {.factor = 0.5, .patience = 1});
  scheduler.step(kNan);
  scheduler.step(kNan);
  EXPECT_EQ(rates(), (Rates{0.5, 0.25}));
  EXPECT_EQ(scheduler.best(), std::numeric_limits<double>::infinity());
  scheduler.step(2.0);
  EXPECT_EQ(scheduler.best(), 2.0);
}

TEST_F(Plateau, StateRoundTrip) {
  const Options options{.mode = Options::Mode::max, .factor = 0.5, .patience = 1, .cooldown = 2};
  ReduceLrOnPlateau fresh(optimizer, options);
  const auto reread = [](const ReduceLrOnPlateau& from) {
    return nlohmann::json::parse(from.state_dict().dump());
  };
  const nlohmann::json at_first = reread(fresh);
  EXPECT_EQ(at_first.at("best"), "-inf");
  for (int i = 0; i < 4; ++i) fresh.step(1.0);
  const nlohmann::json later = reread(fresh);
  EXPECT_EQ(rates(), (Rates{0.5, 0.25}));

  ReduceLrOnPlateau other(optimizer, options);
  other.load_state_dict(at_first);
  EXPECT_EQ(rates(), (Rates{1.0, 0.5}));
  EXPECT_EQ(other.best(), -std::numeric_limits<double>::infinity());
  other.load_state_dict(later);
  EXPECT_EQ(rates(), (Rates{0.5, 0.25}));
  EXPECT_EQ(other.state_dict(), later);
}

TEST_F(Plateau, ABadStateIsRefusedWhole) {
  ReduceLrOnPlateau scheduler(optimizer);
  scheduler.step(1.0);
  const nlohmann::json good = scheduler.state_dict();
  const std::vector<std::pair<const char*, nlohmann::json>> changes = {
      {"best", nullptr},         {"best", "best"},   {"num_bad_epochs", -1},
      {"cooldown_counter", 0.5}, {"last_epoch", {}}, {"_last_lr", {1.0}}};
  for (const auto& [key, value] : changes) {
    nlohmann::json bad = good;
    bad["best"] = 7.0;
    bad[key] = value;
    whole_error_of([&] { scheduler.load_state_dict(bad); });
    EXPECT_EQ(scheduler.state_dict(), good) << key;
  }
}

TEST_F(Plateau, OptionsAreChecked) {
  EXPECT_TRUE(contains(refusal({.factor = 1.0}), "Factor should be < 1.0."));
  EXPECT_TRUE(contains(refusal({.factor = -0.5}), "got -0.5"));
  EXPECT_TRUE(contains(refusal({.patience = -1}), "patience"));
  EXPECT_TRUE(contains(refusal({.threshold = -1}), "threshold"));
  EXPECT_TRUE(contains(refusal({.cooldown = -1}), "cooldown"));
  EXPECT_TRUE(contains(refusal({.min_lr = {0.1}}), "expected 2 values"));
  EXPECT_TRUE(contains(refusal({.min_lr = {}}), "min_lr"));
  EXPECT_TRUE(contains(refusal({.min_lr = -0.1}), "min_lr"));
  EXPECT_TRUE(contains(refusal({.eps = -1}), "eps"));
}

TEST_F(Plateau, NewGroups) {
  ReduceLrOnPlateau for_all(optimizer, {.factor = 0.5, .patience = 0});
  ReduceLrOnPlateau for_each(optimizer, {.factor = 0.5, .patience = 0, .min_lr = {0.1, 0.1}});
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(
      {torch::zeros({1}).requires_grad_()}, std::make_unique<torch::optim::SGDOptions>(4.0)));
  for_all.step(1.0);
  for_all.step(1.0);
  EXPECT_EQ(for_all.get_last_lr(), (Rates{0.5, 0.25, 2.0}));
  EXPECT_TRUE(contains(whole_error_of([&] { for_each.step(1.0); }), "expected 3 values"));
  EXPECT_EQ(for_each.last_step(), 0);
}

}  // namespace
