// GradScaler: saving and loading.
#include <nlohmann/json.hpp>

#include <accelerant/amp/grad_scaler.h>

#include "support/expect_error.h"
#include "support/fused_adam.h"
#include "support/on_device.h"
#include "support/scaler_helpers.h"

namespace {

using accelerant::GradScaler;
using accelerant::GradScalerOptions;
using nlohmann::json;

class State : public OnDevice {};
ON_EVERY_DEVICE(State);

TEST_P(State, LoadsIntoAnotherScaler) {
  for (const bool initialised : {false, true}) {
    GradScaler saved({.device = GetParam(),
                      .init_scale = 3,
                      .growth_factor = 4,
                      .backoff_factor = .5,
                      .growth_interval = 2});
    GradScaler loaded({.device = GetParam(),
                       .init_scale = 6,
                       .growth_factor = 7,
                       .backoff_factor = .8,
                       .growth_interval = 1});
    json seven = loaded.state_dict();
    seven["_growth_tracker"] = 7;
    loaded.load_state_dict(seven);
    if (initialised) {
      loaded.scale(torch::ones({}, device()));
      EXPECT_EQ(growth_tracker(loaded), 7);
    }
    loaded.load_state_dict(saved.state_dict());
    EXPECT_EQ(loaded.get_scale(), 3.0);
    EXPECT_EQ(loaded.get_growth_factor(), 4.0);
    EXPECT_EQ(loaded.get_backoff_factor(), 0.5);
    EXPECT_EQ(loaded.get_growth_interval(), 2);
    EXPECT_EQ(growth_tracker(loaded), 0);
    EXPECT_EQ(loaded.scale(full({}, 2.0)).item<double>(), 6.0);
  }
}

TEST_P(State, BadStatesAreRefusedAndChangeNothing) {
  GradScaler scaler = started_scaler(device(), 4.0);
  const json good = scaler.state_dict();
  EXPECT_TRUE(contains(error_of([&] { scaler.load_state_dict(json::object()); }),
                       "The source state dict is empty"));
  EXPECT_TRUE(contains(error_of([&] { scaler.load_state_dict(nullptr); }), "a JSON object"));
  for (const char* key :
       {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}) {
    json incomplete = good;
    incomplete["scale"] = 8.0;
    incomplete.erase(key);
    EXPECT_TRUE(contains(error_of([&] { scaler.load_state_dict(incomplete); }), key));
  }
  const std::pair<const char*, json> nonsense[] = {{"scale", 0.0},         {"scale", "x"},
                                                   {"growth_factor", 0.5}, {"backoff_factor", 2},
                                                   {"growth_interval", 0}, {"growth_interval", 1.5},
                                                   {"_growth_tracker", -1}};
  for (const auto& [key, value] : nonsense) {
    json bad = good;
    bad["growth_factor"] = 3.0;
    bad[key] = value;
    error_of([&] { scaler.load_state_dict(bad); });
  }
  EXPECT_EQ(scaler.state_dict(), good);
}

TEST_P(State, DoesNotChangeInTheMiddleOfAnIteration) {
  GradScaler scaler = started_scaler(device(), 4.0);
  torch::optim::SGD optimizer({parameter_with_grad(full({2}, kInf))}, 1.0);
  const json before = scaler.state_dict();
  scaler.unscale_(optimizer);
  EXPECT_EQ(scaler.state_dict(), before);
  scaler.step(optimizer);
  EXPECT_EQ(scaler.state_dict(), before);
}

// PyTorch pickles between iterations. Here every iteration goes through JSON text and a new scaler.
TEST_P(State, ARoundTripEachIterationDoesNotChangeTheTraining) {
  const auto train = [&](bool round_trip) {
    auto [model, optimizer] = make_model(device(), 1, 0.1);
    const GradScalerOptions options{.device = GetParam(), .init_scale = 128, .growth_interval = 2};
    GradScaler scaler(options);
    torch::manual_seed(3);
    for (int i = 0; i < 6; ++i) {
      const at::Tensor x = torch::randn({4, 8}, this->options());
      optimizer->zero_grad();
      scaler.scale(torch::mse_loss(model->forward(x), x)).backward();
      if (i == 2) model->parameters()[0].mutable_grad()[0][0] = kNan;
      scaler.step(*optimizer);
      scaler.update();
      if (!round_trip) continue;
      const std::string text = scaler.state_dict().dump();
      scaler = GradScaler(options);
      scaler.load_state_dict(json::parse(text));
    }
    return std::pair{model, scaler.state_dict()};
  };
  const auto [expected_model, expected_state] = train(false);
  const auto [model, state] = train(true);
  EXPECT_EQ(state, expected_state);
  EXPECT_EQ(largest_difference(model, expected_model), 0.0);
}

TEST_P(State, PyTorchsFiveKeysAreEnough) {
  GradScaler scaler = started_scaler(device());
  scaler.load_state_dict({{"scale", 8.0},
                          {"growth_factor", 3.0},
                          {"backoff_factor", 0.25},
                          {"growth_interval", 5},
                          {"_growth_tracker", 2}});
  const json state = scaler.state_dict();
  EXPECT_EQ(state.at("scale"), 8.0);
  EXPECT_EQ(state.at("_growth_tracker"), 2);
  EXPECT_EQ(state.size(), 6U);  // and "accelerant"
}

TEST_P(State, HysteresisStaysWithinItsOption) {
  GradScaler patient({.device = GetParam(), .hysteresis = 5});
  GradScaler strict = started_scaler(device(), GradScalerOptions{.init_scale = 4, .hysteresis = 1});
  strict.load_state_dict(patient.state_dict());
  EXPECT_EQ(strict.state_dict().at("accelerant").at("hysteresis_left"), 1);
  json bad = patient.state_dict();
  bad["accelerant"]["skips"] = -1;
  EXPECT_TRUE(contains(error_of([&] { strict.load_state_dict(bad); }), "skips"));
}

TEST_P(State, LoadingWritesInPlace) {
  // A captured graph refers to the memory of the scale, so loading must write to that memory. An
  // AMP optimizer receives it as grad_scale.
  FusedAdam optimizer({parameter_with_grad(full({2}, 4.0))});
  GradScaler scaler = started_scaler(device(), 4.0);
  scaler.step(optimizer);
  const at::Tensor live_scale = optimizer.seen.grad_scale;
  json state = scaler.state_dict();
  state["scale"] = 32.0;
  scaler.load_state_dict(state);
  EXPECT_EQ(live_scale.item<double>(), 32.0);
  scaler.update(16.0);
  EXPECT_EQ(live_scale.item<double>(), 16.0);
}

}  // namespace
