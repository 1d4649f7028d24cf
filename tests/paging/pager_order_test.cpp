// Memory that is used again, and memory that is still being filled: an operator sees neither the
// next unit's contents nor those of the block before. On a GPU each of the first two tests catches
// one missing wait between streams, which the other one does not notice.
#include <torch/library.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "paging/paged_training.h"

#if defined(ACCELERANT_WITH_CUDA)
#include <ATen/cuda/Sleep.h>
#endif

namespace {

using accelerant::paging::LentMemory;
using accelerant::paging::Pager;
using accelerant::paging::PagerOptions;
using accelerant::paging::Source;
using accelerant::paging::UnitLayout;
using accelerant::paging::UnitPlan;

// --- On a GPU -------------------------------------------------------------------------------------

class PagerStreams : public OnDevice {
 protected:
  // Keeps the current stream busy for some milliseconds.
  void delay() const {
#if defined(ACCELERANT_WITH_CUDA)
    if (on_cuda()) at::cuda::sleep(5'000'000);
#endif
  }
  // Units with one parameter each, filled with 1, 2, 3...
  std::vector<UnitPlan> numbered_units(int count, int64_t elements) const {
    std::vector<UnitPlan> units;
    for (int i = 0; i < count; ++i) {
      units.push_back({.name = std::to_string(i),
                       .parameters = {{.name = std::to_string(i),
                                       .parameter = torch::full({elements}, float(i + 1))}}});
    }
    return units;
  }
};
ON_EVERY_DEVICE(PagerStreams);

TEST_P(PagerStreams, ABlockIsNotFilledAgainBeforeItsReadersAreDone) {
  const int count = 64;
  const int64_t elements = 1 << 20;
  auto units = numbered_units(count, elements);
  const uint64_t bytes = elements * sizeof(float);
  for (const uint64_t budget : {0 * bytes, bytes, 2 * bytes}) {
    Pager pager(units, {.device = device(), .budget = budget, .prefetch = 1, .zero_copy = false});
    auto sum = torch::zeros({elements}, options());
    for (const auto& unit : units) {
      delay();  // the copy of the next unit is long done when this one is read
      sum.add_(unit.parameters[0].parameter);
    }
    EXPECT_TRUE(torch::equal(sum.cpu(), torch::full({elements}, count * (count + 1) / 2.F)));
  }
}

TEST_P(PagerStreams, MemoryIsNotReadBeforeItsContentsHaveArrived) {
  const int64_t elements = on_cuda() ? 16 << 20 : 1 << 16;  // on a GPU a copy takes milliseconds
  auto units = numbered_units(6, elements);
  std::vector<at::Tensor> copies;
  {
    Pager pager(units, {.device = device(), .zero_copy = false});
    for (const auto& unit : units) {
      // Copies from the first to the last element, as the transfer does, and overtakes it.
      copies.push_back(unit.parameters[0].parameter.flip(0));
    }
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    EXPECT_TRUE(torch::equal(copies[i].cpu(), torch::full({elements}, float(i + 1)))) << i;
  }
}

TEST_P(PagerStreams, ChangesAreStoredBehindTheOperatorsThatMadeThem) {
  const int64_t elements = 1 << 20;
  auto units = numbered_units(8, elements);
  {
    Pager pager(units, {.device = device(), .budget = elements * 4, .zero_copy = false});
    for (int round = 0; round < 3; ++round) {
      for (const auto& unit : units) {
        delay();
        unit.parameters[0].parameter.mul_(2);
      }
    }
    EXPECT_GE(pager.statistics().write_backs, 20U);
  }
  for (std::size_t i = 0; i < units.size(); ++i) {
    const auto expected = torch::full({elements}, 8.F * float(i + 1));
    EXPECT_TRUE(torch::equal(units[i].parameters[0].parameter.cpu(), expected)) << i;
  }
}

// --- On the CPU, with threads ---------------------------------------------------------------------

// An operator that does what a test wants while it has its argument.
std::function<void(const at::Tensor&)> while_held = [](const at::Tensor&) {};

at::Tensor hold(const at::Tensor& tensor) {
  while_held(tensor);
  return tensor.clone();
}

TORCH_LIBRARY(accelerant_pager_test, library) { library.def("hold(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(accelerant_pager_test, CPU, library) { library.impl("hold", &hold); }

at::Tensor call_hold(const at::Tensor& tensor) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("accelerant_pager_test::hold", "")
                             .typed<at::Tensor(const at::Tensor&)>();
  return op.call(tensor);
}

// Something that happens once, and can be waited for.
class Signal {
 public:
  void give() {
    const std::lock_guard lock(mutex_);
    is_given_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_given_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_given_ = false;
};

TEST(PagerThreads, MemoryThatAnOperatorUsesIsNotUsedForAnotherUnit) {
  const int64_t elements = 1000;
  std::vector<UnitPlan> units;
  for (int i = 0; i < 4; ++i) {
    units.push_back(
        {.name = std::to_string(i), .parameters = {{"p", torch::full({elements}, float(i))}}});
  }
  Pager pager(units, {.budget = 4096, .zero_copy = false});
  Signal is_held;
  Signal others_are_done;
  while_held = [&](const at::Tensor& tensor) {
    is_held.give();
    others_are_done.wait();
    EXPECT_TRUE(torch::equal(tensor, torch::full({elements}, 0.F)));
  };
  std::thread holder([&] { call_hold(units[0].parameters[0].parameter); });
  is_held.wait();
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 1; i < 4; ++i) {
      EXPECT_EQ(units[i].parameters[0].parameter.sum().item<float>(), float(i) * elements);
    }
  }
  others_are_done.give();
  holder.join();
  while_held = [](const at::Tensor&) {};
  EXPECT_GT(pager.statistics().over_budget, 0U);
  EXPECT_LE(pager.statistics().resident_bytes, 4096U);
}

// A source that fills the first half, waits to be allowed to go on, and fills the second.
class SlowSource final : public Source {
 public:
  std::string describe() const override { return "a slow source"; }
  void fetch(const UnitLayout&, const at::Tensor& block) override {
    ++fetches;
    const auto values = block.view(at::kFloat);
    values.narrow(0, 0, values.numel() / 2).fill_(5);
    has_begun.give();
    may_end.wait();
    values.fill_(5);
  }
  Signal has_begun, may_end;
  int fetches = 0;
};

TEST(PagerThreads, AUnitThatAnotherThreadIsFetchingIsWaitedFor) {
  const auto parameter = torch::zeros({1024});
  const auto other = torch::ones({1024});
  const auto source = std::make_shared<SlowSource>();
  Pager pager({{.name = "slow", .parameters = {{"p", parameter}}, .source = source},
               {.name = "other", .parameters = {{"q", other}}}},
              {.zero_copy = false});
  double first = 0;
  double second = 0;
  std::thread one([&] { first = parameter.sum().item<double>(); });
  source->has_begun.wait();
  std::thread two([&] { second = parameter.sum().item<double>(); });
  EXPECT_EQ(other.sum().item<double>(), 1024);  // others are not held up
  EXPECT_THROW(parameter.const_data_ptr(), c10::Error);
  source->may_end.give();
  one.join();
  two.join();
  EXPECT_EQ(first, 5 * 1024);
  EXPECT_EQ(second, 5 * 1024);
  EXPECT_EQ(source->fetches, 1);
}

}  // namespace
