// How a Pager, its scopes and its parameters end: in any order, in forked children, and without more
// work or memory than that takes.
#include <pthread.h>
#include <torch/torch.h>

#include <atomic>
#include <filesystem>
#include <limits>
#include <mutex>
#include <thread>

#include "accelerant/core/error.h"
#include "paging/host_memory.h"
#include "paging/offload/offloaded_model.h"
#include "paging/paged_training.h"
#include "paging/registry.h"
#include "paging/residency.h"
#include "support/expect_error.h"
#include "support/forked.h"
#include "support/gathered_log.h"

namespace {

using accelerant::paging::HostMemory;
using accelerant::paging::is_paged;
using accelerant::paging::OffloadedModel;
using accelerant::paging::Pager;
using accelerant::paging::PagerOptions;
using accelerant::paging::Registry;
using accelerant::paging::Residency;
using accelerant::paging::Source;
using accelerant::paging::UnitLayout;
using accelerant::paging::UnitPlan;
using accelerant::paging::Writes;

// What sources have done.
struct Tally {
  std::mutex mutex;
  std::atomic<int> sources = 0;  // that exist
  std::atomic<int> fetches = 0;
  std::atomic<bool> is_busy = false;              // a fetch is running
  std::atomic<bool> was_asked_meanwhile = false;  // something else about a source
  std::vector<int> sources_at_fetch = {};         // how many existed then
  std::chrono::milliseconds duration_of_fetch{0};
};

class TalliedSource final : public Source {
 public:
  TalliedSource(Tally& tally, at::Tensor block) : tally_(tally), memory_(std::move(block)) {
    ++tally_.sources;
  }
  ~TalliedSource() override { --tally_.sources; }
  std::string describe() const override { return "a source that counts"; }
  void fetch(const UnitLayout& layout, const at::Tensor& block) override {
    ++tally_.fetches;
    {
      const std::lock_guard lock(tally_.mutex);
      tally_.sources_at_fetch.push_back(tally_.sources);
    }
    tally_.is_busy = true;
    std::this_thread::sleep_for(tally_.duration_of_fetch);
    memory_.fetch(layout, block);
    tally_.is_busy = false;
  }
  Writes writes() const override {
    if (tally_.is_busy) tally_.was_asked_meanwhile = true;
    return Writes::kept;
  }

 private:
  Tally& tally_;
  HostMemory memory_;
};

constexpr int64_t kElements = 256;  // of a unit: two times the alignment of blocks
constexpr uint64_t kBytes = kElements * sizeof(float);

// Parameters with the values 1, 2, 3..., and a unit for each.
struct Numbers {
  Numbers(int count, const at::TensorOptions& options) {
    for (int i = 0; i < count; ++i) {
      parameters.push_back(torch::full({kElements}, float(i + 1), options));
    }
  }
  std::vector<UnitPlan> units(Tally* tally = nullptr) const {
    std::vector<UnitPlan> plans;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::string name = std::to_string(i);
      plans.push_back({.name = name, .parameters = {{name, parameters[i]}}});
      if (tally == nullptr) continue;
      at::Tensor block = HostMemory::allocate({.bytes = kBytes}, parameters[i].device());
      block.view(at::kFloat).copy_(parameters[i]);
      plans.back().source = std::make_shared<TalliedSource>(*tally, block);
    }
    return plans;
  }
  void use_all() const {
    for (const auto& parameter : parameters) parameter.sum();
  }
  void expect_values() const {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_FALSE(is_paged(parameters[i]));
      EXPECT_EQ(parameters[i].sum().item<float>(), float(kElements * int64_t(i + 1)));
    }
  }
  std::vector<at::Tensor> parameters;
};

class PagerEnd : public OnDevice {
 protected:
  PagerOptions frugal(int units, int64_t prefetch = 0) const {
    return {.device = device(),
            .budget = kBytes * static_cast<uint64_t>(units),
            .prefetch = prefetch,
            .zero_copy = false};
  }
};
ON_EVERY_DEVICE(PagerEnd);

// --- Detaching ------------------------------------------------------------------------------------

std::ptrdiff_t count_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST_P(PagerEnd, DetachingFetchesNothingAhead) {
  const Numbers numbers(4, options());
  Tally tally;
  Pager pager(numbers.units(&tally), frugal(2, /*prefetch=*/1));
  for (int i = 0; i < 3; ++i) numbers.use_all();
  const std::ptrdiff_t threads = count_threads();
  pager.detach();
  // The one that prefetches is gone. The system may count it for a moment longer.
  for (int i = 0; i < 1000 && count_threads() == threads; ++i) usleep(1000);
  EXPECT_EQ(count_threads(), threads - 1);
  numbers.expect_values();
}

TEST_P(PagerEnd, UsesAreAnnouncedOnceAndDetachingIsNone) {
  const Numbers numbers(2, options());
  int announced = 0;
  PagerOptions paging = frugal(1);
  paging.before_use = [&] { ++announced; };
  Pager pager(numbers.units(), paging);
  for (const auto& parameter : numbers.parameters) parameter.neg();
  EXPECT_EQ(announced, 2);
  pager.detach();
  EXPECT_EQ(announced, 2);
}

TEST_P(PagerEnd, DetachingNeedsNoMoreThanAUnitTwice) {
  const Numbers numbers(4, options());
  Tally tally;
  Pager pager(numbers.units(&tally), frugal(1));
  EXPECT_EQ(tally.sources, 4);
  pager.detach();
  EXPECT_EQ(tally.sources_at_fetch, (std::vector<int>{4, 3, 2, 1}));
  EXPECT_EQ(tally.sources, 0);
  numbers.expect_values();
}

TEST_P(PagerEnd, DetachingToADeviceThatIsNotThereChangesNothing) {
  const Numbers numbers(2, options());
  Pager pager(numbers.units(), frugal(1));
  for (const c10::Device wrong : {c10::Device(at::kMeta), c10::Device(at::kCUDA, 77)}) {
    EXPECT_TRUE(contains(whole_error_of([&] { pager.detach(wrong); }), wrong.str()));
    for (const auto& parameter : numbers.parameters) EXPECT_TRUE(is_paged(parameter));
  }
  pager.detach();
  numbers.expect_values();
}

TEST_P(PagerEnd, ADeviceWithoutAnIndexIsTheCurrentOne) {
  const Numbers numbers(2, options());
  Pager pager(numbers.units(), frugal(1));
  const at::Tensor view = numbers.parameters[1].narrow(0, 3, 1);
  pager.detach(c10::Device(device().type()));
  EXPECT_EQ(numbers.parameters[1].device(), device());
  EXPECT_EQ(view.item<float>(), 2) << "follows its parameter";
}

TEST_P(PagerEnd, GradientsGoBackWithTheirParameters) {
  const Numbers numbers(2, at::TensorOptions(at::kFloat).requires_grad(true));
  Pager pager(numbers.units(), frugal(1));
  for (const auto& parameter : numbers.parameters) (parameter * 3).sum().backward();
  EXPECT_EQ(numbers.parameters[0].grad().device(), device());
  pager.detach();
  for (const auto& parameter : numbers.parameters) {
    EXPECT_TRUE(parameter.is_cpu());
    EXPECT_TRUE(torch::equal(parameter.grad(), torch::full({kElements}, 3.F)));
  }
}

// --- Uses -----------------------------------------------------------------------------------------

TEST_P(PagerEnd, ASourceIsLeftAloneWhileItsUnitMoves) {
  const Numbers numbers(1, options());
  Tally tally;
  tally.duration_of_fetch = std::chrono::milliseconds(100);
  Pager pager(numbers.units(&tally), frugal(1));
  const auto& parameter = numbers.parameters[0];
  std::thread other([&] { parameter.sum(); });
  while (!tally.is_busy) std::this_thread::yield();
  parameter.add_(1);  // asks whether the source allows it
  other.join();
  EXPECT_FALSE(tally.was_asked_meanwhile);
  EXPECT_EQ(parameter.sum().item<float>(), 2 * kElements);
}

// New threads get a stack that no memory has room for.
TEST_P(PagerEnd, WithoutAThreadUnitsComeWhenTheyAreNeeded) {
  const Numbers numbers(3, options());
  Tally tally;
  Pager pager(numbers.units(&tally), frugal(2, /*prefetch=*/1));
  pthread_attr_t before;
  ASSERT_EQ(pthread_getattr_default_np(&before), 0);
  pthread_attr_t huge;
  ASSERT_EQ(pthread_getattr_default_np(&huge), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&huge, std::size_t{1} << 47), 0);
  ASSERT_EQ(pthread_setattr_default_np(&huge), 0);
  for (int i = 0; i < 3; ++i) numbers.use_all();
  EXPECT_EQ(pthread_setattr_default_np(&before), 0);
  pthread_attr_destroy(&huge);
  pthread_attr_destroy(&before);
  EXPECT_EQ(pager.statistics().prefetches, 0U);
  pager.detach();
  numbers.expect_values();
}

TEST_P(PagerEnd, MoreMayBeFetchedAheadThanThereIs) {
  const Numbers numbers(4, options());
  Pager pager(numbers.units(), frugal(3, std::numeric_limits<int64_t>::max()));
  for (int i = 0; i < 4; ++i) numbers.use_all();
  pager.detach();
  numbers.expect_values();
}

// --- Scopes that outlive their Pager --------------------------------------------------------------

TEST_P(PagerEnd, AnIterationMayEndLast) {
  const Numbers numbers(2, options());
  auto pager = std::make_unique<Pager>(numbers.units(), frugal(1));
  const auto iteration = pager->begin("train");
  numbers.use_all();
  pager.reset();
  numbers.expect_values();
}

TEST_P(PagerEnd, AUnitThatIsStillHeldIsFreedLater) {
  const GatheredLog log;
  const Numbers numbers(2, options());
  Tally tally;
  auto pager = std::make_unique<Pager>(numbers.units(&tally), frugal(1));
  {
    const Residency residency({numbers.parameters[0]});
    pager.reset();
    EXPECT_TRUE(contains(log.text(), "have no memory any more"));
    EXPECT_EQ(tally.sources, 1);
  }
  EXPECT_EQ(tally.sources, 0);
  const std::lock_guard lock(Registry::instance().mutex);
  EXPECT_TRUE(Registry::instance().orphans.empty());
}

TEST_P(PagerEnd, WhatIsStillHeldKeepsItsMemory) {
  const GatheredLog log;
  const Numbers numbers(1, options());
  auto pager = std::make_unique<Pager>(numbers.units(), frugal(1));
  {
    const Residency residency({numbers.parameters[0]});
    const at::Tensor seen =
        torch::from_blob(numbers.parameters[0].mutable_data_ptr(), {kElements}, options());
    pager.reset();
    {
      const std::lock_guard lock(Registry::instance().mutex);
      ASSERT_EQ(Registry::instance().orphans.size(), 1U);
      EXPECT_TRUE(Registry::instance().orphans[0]->block.defined());
    }
    EXPECT_EQ(seen.sum().item<float>(), kElements);
  }
  EXPECT_TRUE(Registry::instance().orphans.empty());
}

TEST_P(PagerEnd, AModelThatIsDroppedWhileItIsHeldIsNoError) {
  const GatheredLog log;
  Numbers numbers(2, options());
  OffloadedModel::attach({.units = numbers.units(), .pager = frugal(1)});
  {
    const Residency residency({numbers.parameters[0]});
    numbers.parameters.clear();
    EXPECT_EQ(log.text(), "");
  }
  EXPECT_TRUE(Registry::instance().orphans.empty());
}

// Only on another device than the parameters' own: there they would follow.
TEST_P(PagerEnd, AliasesThatStayBehindKeepTheirValues) {
  const Numbers numbers(2, at::TensorOptions(at::kFloat).requires_grad(true));
  Pager pager(numbers.units(), frugal(1));
  const at::Tensor alias = numbers.parameters[0].detach();
  const at::Tensor x = torch::ones({16, 16}, options()).requires_grad_();
  const at::Tensor loss = (numbers.parameters[1].view({16, 16}) * x).sum();
  pager.detach();
  numbers.expect_values();
  EXPECT_EQ(alias.device(), device());
  EXPECT_EQ(alias.sum().item<float>(), kElements);
  EXPECT_EQ(torch::autograd::grad({loss}, {x})[0].sum().item<float>(), 2 * kElements);
}

// A forked child has the parent's locks, but not the threads that would release them.
TEST(PagerForks, ScopesEndInAForkedChild) {
  const Numbers numbers(1, {});
  Pager pager(numbers.units());
  auto iteration = std::make_optional(pager.begin("train"));
  auto residency =
      std::make_optional<Residency>(std::initializer_list<at::Tensor>{numbers.parameters[0]});
  pid_t child = -1;
  {
    const std::lock_guard as_another_thread(Registry::instance().mutex);
    child = fork();
    if (child == 0) {
      residency.reset();
      iteration.reset();
      _exit(5);
    }
  }
  EXPECT_EQ(forked::end_of(child), "exit 5");
}

// --- Models that are dropped ----------------------------------------------------------------------

TEST_P(PagerEnd, ADroppedModelIsNotFetched) {
  Tally tally;
  {
    Numbers numbers(3, options());
    OffloadedModel::attach({.units = numbers.units(&tally), .pager = frugal(1)});
    numbers.use_all();
    tally.fetches = 0;
    while (!numbers.parameters.empty()) numbers.parameters.pop_back();
  }
  EXPECT_EQ(tally.fetches, 0);
  EXPECT_EQ(tally.sources, 0);
}

TEST_P(PagerEnd, WhatAliasesADroppedModelKeepsItsValues) {
  Tally tally;
  Numbers numbers(3, options());
  OffloadedModel::attach({.units = numbers.units(&tally), .pager = frugal(1)});
  const at::Tensor of_first = numbers.parameters[0].detach();
  const at::Tensor of_last = numbers.parameters[2].detach();
  tally.fetches = 0;
  numbers.parameters.clear();
  EXPECT_EQ(tally.sources, 0);
  EXPECT_EQ(tally.fetches, 2);
  EXPECT_EQ(of_first.sum().item<float>(), kElements);
  EXPECT_EQ(of_last.sum().item<float>(), 3 * kElements);
}

}  // namespace
