#include "tensor/random_state.h"

#include "support/expect_error.h"
#include "support/on_device.h"

namespace {

using accelerant::RandomState;

class RandomStateOn : public OnDevice {
 protected:
  at::Tensor draw() const { return torch::randn({33}, options()); }
};
ON_EVERY_DEVICE(RandomStateOn);

TEST_P(RandomStateOn, WhatFollowsIsDrawnAgain) {
  draw();
  const RandomState state = RandomState::capture();
  const at::Tensor first = draw();
  const at::Tensor second = draw();
  EXPECT_TRUE(state.restore().empty());
  EXPECT_TRUE(draw().equal(first));
  EXPECT_TRUE(draw().equal(second));
  // Neither drawing nor restoring has changed the captured state.
  state.restore();
  EXPECT_TRUE(draw().equal(first));
}

TEST(RandomState, HasEveryGenerator) {
  const RandomState state = RandomState::capture();
  const auto devices = torch::cuda::is_available() ? torch::cuda::device_count() : 0;
  EXPECT_EQ(state.tensors.size(), 1 + devices);
  for (const auto& item : state.tensors) {
    EXPECT_EQ(item.value().dtype(), torch::kByte);
    EXPECT_TRUE(item.value().is_cpu());
  }
  EXPECT_TRUE(state.tensors.contains("cpu"));
}

TEST(RandomState, DevicesThatAreNotHereAreSkippedAndNamed) {
  RandomState state = RandomState::capture();
  const at::Tensor expected = torch::rand({4});
  state.tensors.insert("cuda.100", torch::zeros({16}, torch::kByte));
  EXPECT_EQ(state.restore(), std::vector<std::string>{"cuda.100"});
  EXPECT_TRUE(torch::rand({4}).equal(expected));
}

TEST(RandomState, ABadStateIsRefusedAndNothingIsSet) {
  torch::manual_seed(1);
  const RandomState other = RandomState::capture();
  torch::manual_seed(2);
  const RandomState before = RandomState::capture();
  const at::Tensor expected = torch::rand({4});
  before.restore();

  RandomState unknown = other;
  unknown.tensors.insert("tpu.0", torch::zeros({16}, torch::kByte));
  EXPECT_TRUE(contains(error_of([&] { unknown.restore(); }), "got tpu.0"));
  for (const at::Tensor& bad :
       {torch::zeros({7}, torch::kByte), torch::zeros({5056}), at::Tensor()}) {
    RandomState broken;
    broken.tensors.insert("cpu", bad);
    EXPECT_TRUE(
        contains(error_of([&] { broken.restore(); }), "The random state 'cpu' cannot be restored"));
  }
  for (const char* name : {"cuda.", "cuda.x", "cuda.-1", "cuda.1x", ""}) {
    RandomState misnamed;
    misnamed.tensors.insert(name, torch::zeros({16}, torch::kByte));
    EXPECT_TRUE(contains(error_of([&] { misnamed.restore(); }), "unknown name")) << name;
  }
  EXPECT_TRUE(torch::rand({4}).equal(expected));
}

}  // namespace
