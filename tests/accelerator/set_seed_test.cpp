// utilities_test.py compares the numbers themselves with Python's.
#include "accelerant/accelerator/utilities.h"

#include "support/expect_error.h"
#include "support/on_device.h"
#include "support/ranks.h"

namespace {

using accelerant::set_seed;

class SetSeed : public OnDevice {
 protected:
  at::Tensor draw() const { return torch::randn({8}, options()); }
};
ON_EVERY_DEVICE(SetSeed);

TEST_P(SetSeed, TheSameSeedGivesTheSameNumbers) {
  set_seed(5);
  const at::Tensor first = draw();
  EXPECT_FALSE(draw().equal(first));
  set_seed(5);
  EXPECT_TRUE(draw().equal(first));
  set_seed(6);
  EXPECT_FALSE(draw().equal(first));
}

TEST_P(SetSeed, ProcessesDrawTheSameUnlessToldOtherwise) {
  set_seed(5);
  const at::Tensor first = draw();
  set_seed(5, {.process_index = 3});
  EXPECT_TRUE(draw().equal(first));
  set_seed(2, {.device_specific = true, .process_index = 3});
  EXPECT_TRUE(draw().equal(first));
}

// In separate processes, as launchers start them, without an Accelerator.
RANK_TEST(SetSeedRanks, TheProcessIsThatOfTheLauncher, 3) {
  const auto numbers_of = [](uint64_t seed, const accelerant::SetSeedOptions& options) {
    set_seed(seed, options);
    return torch::randn({8});
  };
  const auto own = numbers_of(5, {.device_specific = true});
  EXPECT_TRUE(own.equal(numbers_of(5 + static_cast<uint64_t>(rank()), {})));
  EXPECT_TRUE(
      numbers_of(5, {}).equal(numbers_of(5, {.device_specific = true, .process_index = 0})));
}

TEST(SetSeedOptions, Deterministic) {
  auto& context = at::globalContext();
  const bool before = context.deterministicAlgorithms();
  set_seed(1);
  EXPECT_EQ(context.deterministicAlgorithms(), before);
  set_seed(1, {.deterministic = true});
  EXPECT_TRUE(context.deterministicAlgorithms());
  set_seed(1);
  EXPECT_TRUE(context.deterministicAlgorithms());
  context.setDeterministicAlgorithms(before, false);
}

TEST(SetSeedOptions, AreChecked) {
  EXPECT_TRUE(contains(error_of([] { set_seed(1, {.process_index = -1}); }), "got -1"));
}

}  // namespace
