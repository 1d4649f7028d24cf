// Budgets, the order in which units come and go, failures of sources.
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "accelerant/core/error.h"
#include "accelerant/core/failpoint.h"
#include "paging/host_memory.h"
#include "paging/paged_training.h"
#include "paging/residency.h"
#include "paging/schedule.h"
#include "support/expect_error.h"

namespace {

namespace nn = torch::nn;
using accelerant::paging::HostMemory;
using accelerant::paging::Pager;
using accelerant::paging::PagerStatistics;
using accelerant::paging::plan_units;
using accelerant::paging::Residency;
using accelerant::paging::Schedule;
using accelerant::paging::Source;
using accelerant::paging::UnitLayout;
using accelerant::paging::UnitPlan;
using accelerant::paging::Writes;

// --- Schedule -------------------------------------------------------------------------------------

std::vector<std::size_t> next(const Schedule& schedule, std::size_t count) {
  return schedule.upcoming(count);
}
using Units = std::vector<std::size_t>;

TEST(PagerSchedule, KnowsNothingAtFirst) {
  Schedule schedule;
  schedule.begin("train");
  schedule.touch(0);
  schedule.touch(1);
  EXPECT_EQ(next(schedule, 3), Units{});
}

TEST(PagerSchedule, RepeatsTheOrderOfItsPhase) {
  Schedule schedule;
  for (int iteration = 0; iteration < 2; ++iteration) {
    schedule.begin("train");
    for (const std::size_t unit : {0, 1, 2, 1, 1, 0}) schedule.touch(unit);
    schedule.end();
    schedule.begin("eval");
    for (const std::size_t unit : {2, 0}) schedule.touch(unit);
    schedule.end();
  }
  schedule.begin("train");
  schedule.touch(0);
  EXPECT_EQ(next(schedule, 2), (Units{1, 2}));
  schedule.touch(1);
  schedule.touch(2);
  EXPECT_EQ(next(schedule, 3), (Units{1, 0, 2}));  // then the next iteration begins
  EXPECT_FALSE(schedule.touch(2));
  schedule.end();
  schedule.begin("eval");
  schedule.touch(2);
  EXPECT_EQ(next(schedule, 1), Units{0});
}

TEST(PagerSchedule, LearnsAnotherOrder) {
  Schedule schedule;
  const auto iterate = [&](const Units& units) {
    schedule.begin("train");
    for (const std::size_t unit : units) schedule.touch(unit);
    schedule.end();
  };
  iterate({0, 1, 2, 3});
  iterate({0, 2, 1, 3});
  schedule.begin("train");
  schedule.touch(0);
  EXPECT_EQ(next(schedule, 3), (Units{2, 1, 3}));
}

TEST(PagerSchedule, GuessesWithoutPhases) {
  Schedule schedule;
  for (int i = 0; i < 2; ++i) {
    for (const std::size_t unit : {0, 1, 2, 3, 2, 1}) schedule.touch(unit);
  }
  schedule.touch(0);
  schedule.touch(1);
  EXPECT_EQ(next(schedule, 2), (Units{2, 3}));  // forward
  schedule.touch(2);
  schedule.touch(3);
  EXPECT_EQ(next(schedule, 3), (Units{2, 1, 0}));  // backward
}

// --- Budgets --------------------------------------------------------------------------------------

// Twelve layers, the last of which is tied to the first.
struct TiedStack : nn::Module {
  explicit TiedStack(int layers) {
    for (int i = 0; i < layers; ++i) {
      weights.push_back(register_module("layer" + std::to_string(i), std::make_shared<Parts>())
                            ->add("weight", torch::randn({16, 16}) / 4));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& weight : weights) x = torch::tanh(x.mm(weight));
    return x.mm(weights[0].t());
  }
  std::vector<at::Tensor> weights;
};

class PagerBudget : public OnDevice {};
ON_EVERY_DEVICE(PagerBudget);

TEST_P(PagerBudget, RecordedOrdersNeedFewerFetches) {
  const auto model = std::make_shared<TiedStack>(12);
  model->to(device());
  for (const int budget : {3, 5}) {
    const auto pager = page(*model, device(), {.budget_in_units = budget, .prefetch = 0});
    uint64_t fetches[3];
    for (uint64_t& count : fetches) {
      pager->reset_statistics();
      const auto iteration = pager->begin("train");
      model->forward(torch::ones({2, 16}, options())).sum().backward();
      count = pager->statistics().fetches;
    }
    EXPECT_LE(fetches[2], fetches[0] - 1) << budget;
    EXPECT_EQ(fetches[2], budget == 3 ? 18U : 14U);
    EXPECT_LE(pager->statistics().peak_bytes, static_cast<uint64_t>(budget) * 1024);
    EXPECT_EQ(pager->statistics().over_budget, 0U);
  }
}

TEST_P(PagerBudget, PrefetchedUnitsAreNotMissed) {
  const auto model = std::make_shared<TiedStack>(12);
  model->to(device());
  const auto pager = page(*model, device(), {.budget_in_units = 4, .prefetch = 2});
  const at::NoGradGuard no_grad;
  const auto step = [&] {
    pager->reset_statistics();
    const auto iteration = pager->begin("eval");
    for (const auto& weight : model->weights) {
      weight.sum();
      // On the CPU a thread prefetches, which needs time.
      if (!on_cuda()) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    return pager->statistics();
  };
  step();
  step();
  const PagerStatistics third = step();
  EXPECT_GE(third.prefetches, on_cuda() ? 8U : 1U);
  EXPECT_LE(third.misses, on_cuda() ? 2U : 11U);
  EXPECT_LE(third.peak_bytes, 4096U);
}

TEST_P(PagerBudget, WithoutALimitEverythingIsFetchedOnce) {
  const auto model = std::make_shared<TiedStack>(6);
  model->to(device());
  Pager pager(unit_per_module(*model), {.device = device(), .zero_copy = false});
  for (int i = 0; i < 3; ++i) model->forward(torch::ones({2, 16}, options())).sum().backward();
  EXPECT_EQ(pager.statistics().fetches, 6U);
  EXPECT_EQ(pager.statistics().evictions, 0U);
  pager.evict_all();
  EXPECT_EQ(pager.statistics().resident_bytes, 0U);
  EXPECT_EQ(pager.statistics().evictions, 6U);
}

TEST_P(PagerBudget, AnOperatorMayNeedMoreThanTheBudget) {
  const auto model = std::make_shared<TiedStack>(4);
  model->to(device());
  const auto expected = torch::cat(model->weights).cpu();
  const auto pager = page(*model, device(), {.budget_in_units = 1, .prefetch = 0});
  EXPECT_TRUE(torch::equal(torch::cat(model->weights).cpu(), expected));
  const PagerStatistics statistics = pager->statistics();
  EXPECT_EQ(statistics.over_budget, 3U);
  EXPECT_EQ(statistics.peak_bytes, 4096U);
  EXPECT_LE(statistics.resident_bytes, 1024U);
}

TEST_P(PagerBudget, UnchangedUnitsAreNotStored) {
  const auto model = std::make_shared<TiedStack>(4);
  model->to(device());
  const auto pager = page(*model, device(), {.budget_in_units = 1});
  model->forward(torch::ones({2, 16}, options())).sum().backward();
  EXPECT_EQ(pager->statistics().write_backs, 0U);
  const at::NoGradGuard no_grad;
  for (const auto& weight : model->weights) weight.mul_(2);
  pager->evict_all();
  EXPECT_EQ(pager->statistics().write_backs, 4U);
  pager->evict_all();
  EXPECT_EQ(pager->statistics().write_backs, 4U);
}

TEST_P(PagerBudget, ZeroCopyUnitsTakeNoMemory) {
  nn::Linear layer(64, 64);
  const auto pager = page(*layer, at::kCPU, {.zero_copy = true});
  const at::NoGradGuard no_grad;
  layer->weight.fill_(3);
  EXPECT_EQ(layer->weight.sum().item<float>(), 3 * 64 * 64);
  EXPECT_EQ(pager->statistics().resident_bytes, 0U);
  EXPECT_GE(pager->statistics().lent_bytes, 64U * 64 * 4);
}

// --- Failures -------------------------------------------------------------------------------------

// Host memory that fails when it is told to.
class FailingSource final : public Source {
 public:
  explicit FailingSource(at::Tensor block) : memory_(std::move(block)) {}
  std::string describe() const override { return "a failing source"; }
  void fetch(const UnitLayout& layout, const at::Tensor& block) override {
    if (fails) throw accelerant::Error("the disk is gone");
    memory_.fetch(layout, block);
  }
  Writes writes() const override { return refuses ? Writes::refused : Writes::stored; }
  void store(const UnitLayout& layout, const at::Tensor& block) override {
    if (fails) throw accelerant::Error("the disk is full");
    memory_.store(layout, block);
  }
  bool fails = false;
  bool refuses = false;

 private:
  HostMemory memory_;
};

class PagerFailures : public OnDevice {
 protected:
  // Layers with sources that can fail; what they hold is ones.
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    model = std::make_shared<TiedStack>(3);
    model->to(device());
    auto units = unit_per_module(*model);
    for (auto& unit : units) {
      UnitLayout layout{.bytes = 1024};
      auto block = HostMemory::allocate(layout, device());
      block.view(at::kFloat).fill_(0.1);
      sources.push_back(std::make_shared<FailingSource>(block));
      unit.source = sources.back();
    }
    pager.emplace(units,
                  accelerant::paging::PagerOptions{
                      .device = device(), .budget = 1024, .prefetch = 0, .zero_copy = false});
  }
  at::Tensor forward() { return model->forward(torch::ones({2, 16}, options())).sum(); }

  std::shared_ptr<TiedStack> model;
  std::vector<std::shared_ptr<FailingSource>> sources;
  std::optional<Pager> pager;
};
ON_EVERY_DEVICE(PagerFailures);

TEST_P(PagerFailures, AFailedFetchReachesTheCallerAndIsTriedAgain) {
  const auto expected = forward().item<double>();
  sources[1]->fails = true;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(contains(whole_error_of([&] { forward(); }), "the disk is gone"));
  }
  EXPECT_GE(pager->statistics().failures, 2U);
  sources[1]->fails = false;
  EXPECT_EQ(forward().item<double>(), expected);
  pager->evict_all();
  EXPECT_EQ(pager->statistics().resident_bytes, 0U);  // no pin is left
}

TEST_P(PagerFailures, AlsoInBackward) {
  const auto gradients = [&](const at::Tensor& loss) {
    return torch::autograd::grad({loss}, model->parameters());
  };
  const auto expected = gradients(forward());
  const auto loss = forward();
  sources[1]->fails = true;
  EXPECT_THROW(gradients(loss), accelerant::Error);
  sources[1]->fails = false;
  pager->evict_all();
  EXPECT_EQ(pager->statistics().resident_bytes, 0U);
  const auto found = gradients(forward());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i]));
}

TEST_P(PagerFailures, ChangesThatCannotBeStoredStayInMemory) {
  const at::NoGradGuard no_grad;
  model->weights[0].fill_(7);
  sources[0]->fails = true;
  EXPECT_TRUE(contains(whole_error_of([&] { model->weights[1].sum(); }), "the disk is full"));
  EXPECT_TRUE(contains(whole_error_of([&] { pager->evict_all(); }), "the disk is full"));
  EXPECT_EQ(model->weights[0].sum().item<float>(), 7 * 256);
  sources[0]->fails = false;
  EXPECT_NEAR(model->weights[1].sum().item<float>(), 25.6, 1e-3);
  EXPECT_EQ(model->weights[0].sum().item<float>(), 7 * 256);
}

TEST_P(PagerFailures, DetachingCanBeRepeated) {
  sources[1]->fails = true;
  EXPECT_THROW(pager->detach(), accelerant::Error);
  sources[1]->fails = false;
  pager->detach();
  for (const auto& weight : model->weights) {
    EXPECT_FALSE(accelerant::paging::is_paged(weight));
    EXPECT_NEAR(weight.sum().item<float>(), 25.6, 1e-3);
  }
}

// Who needs the unit next would otherwise wait for ever.
TEST_P(PagerFailures, ABlockThatCannotBeKeptIsFreed) {
  const auto expected = forward().item<double>();
  ::setenv("ACCELERANT_FAILPOINT", "paging.give_back:throw", 1);
  accelerant::reload_failpoints();
  pager->evict_all();
  ::unsetenv("ACCELERANT_FAILPOINT");
  accelerant::reload_failpoints();
  EXPECT_EQ(pager->statistics().resident_bytes, 0U);
  EXPECT_EQ(forward().item<double>(), expected);
}

TEST_P(PagerFailures, SourcesMayRefuseChanges) {
  sources[2]->refuses = true;
  const at::NoGradGuard no_grad;
  const std::string message = whole_error_of([&] { model->weights[2].add_(1); });
  EXPECT_TRUE(contains(message, "cannot be changed"));
  EXPECT_TRUE(contains(message, "a failing source"));
  EXPECT_NEAR(model->weights[2].sum().item<float>(), 25.6, 1e-3);
}

TEST_P(PagerFailures, APagerThatCannotDetachEndsAllTheSame) {
  for (const auto& source : sources) source->fails = true;
  pager.reset();
  EXPECT_THROW(model->weights[0].const_data_ptr(), c10::Error);
}

// --- Units ----------------------------------------------------------------------------------------

std::vector<std::string> names_of(const std::vector<UnitPlan>& units) {
  std::vector<std::string> names;
  for (const UnitPlan& unit : units) names.push_back(unit.name);
  return names;
}

struct Block : nn::Module {
  Block() {
    register_module("norm", nn::LayerNorm(nn::LayerNormOptions({512})));
    register_module("mlp", nn::Sequential(nn::Linear(512, 1024), nn::Linear(1024, 512)));
  }
};

struct Gpt : nn::Module {
  Gpt() {
    embedding = register_module("embedding", nn::Embedding(1000, 512));
    nn::ModuleList list;
    for (int i = 0; i < 3; ++i) list->push_back(std::make_shared<Block>());
    register_module("layers", list);
    auto head = std::make_shared<Parts>();
    head->add("weight", embedding->weight);
    register_module("head", head);
  }
  nn::Embedding embedding{nullptr};
};

TEST(PagerUnits, AreTheChildrenOfLists) {
  const Gpt model;
  const auto units = plan_units(model);
  EXPECT_EQ(names_of(units),
            (std::vector<std::string>{"layers.0", "layers.1", "layers.2", "embedding", "head"}));
  EXPECT_EQ(units[0].parameters.size(), 2U);  // norms and biases are small
  EXPECT_EQ(units[3].parameters.size(), 1U);
  EXPECT_EQ(plan_units(model, {.small_parameter = 0})[0].parameters.size(), 6U);
}

TEST(PagerUnits, WithoutListsTheyAreTheModules) {
  Parts model;
  model.add("first", nn::Linear(600, 600));
  const auto inner = std::make_shared<Parts>();
  inner->add("up", nn::Linear(600, 600));
  inner->add("small", nn::Linear(400, 400));
  inner->add("smaller", nn::Linear(400, 300));
  model.register_module("inner", inner);
  model.add("scale", torch::ones({600, 600}));
  EXPECT_EQ(names_of(plan_units(model)),
            (std::vector<std::string>{"", "first", "inner.up", "inner.small, inner.smaller"}));
  nn::Linear alone(600, 600);
  EXPECT_EQ(names_of(plan_units(*alone)), std::vector<std::string>{""});
}

TEST(PagerUnits, SmallNeighboursAreJoined) {
  nn::Sequential model;
  for (int i = 0; i < 5; ++i) model->push_back(nn::Linear(400, 400));  // 640,000 bytes each
  const auto units = plan_units(*model, {.small_parameter = 1000});
  EXPECT_EQ(names_of(units), (std::vector<std::string>{"0, 1", "2, 3, 4"}));
}

TEST(PagerUnits, ListsInListsAreDivided) {
  nn::ModuleList model;
  model->push_back(nn::Sequential(nn::Linear(600, 600), nn::Linear(600, 600)));
  model->push_back(nn::Linear(600, 600));
  EXPECT_EQ(names_of(plan_units(*model)), (std::vector<std::string>{"0.0", "0.1", "1"}));
}

TEST(PagerUnits, PrefixesDecide) {
  const Gpt model;
  const auto units =
      plan_units(model, {.prefixes = {"layers", "layers.1", "layers.2.mlp"}, .small_parameter = 0});
  EXPECT_EQ(names_of(units), (std::vector<std::string>{"layers", "layers.1", "layers.2.mlp", ""}));
  EXPECT_EQ(units[0].parameters.size(), 8U);
  EXPECT_EQ(units[2].parameters.size(), 4U);
  EXPECT_TRUE(
      contains(whole_error_of([&] { plan_units(model, {.prefixes = {"layer"}}); }), "\"layer\""));
}

TEST(PagerUnits, TiedParametersBelongToTheFirst) {
  Gpt model;
  Pager pager(plan_units(model, {.prefixes = {"embedding", "head", "layers"}}));
  ASSERT_EQ(pager.layouts().size(), 2U);
  EXPECT_EQ(pager.layouts()[0].parts.at(0).names,
            (std::vector<std::string>{"embedding.weight", "head.weight"}));
  EXPECT_EQ(pager.unit_of(model.embedding->weight), 0U);
  EXPECT_EQ(pager.unit_of(torch::zeros({1})), std::nullopt);
  for (const UnitLayout& layout : pager.layouts()) {
    for (const auto& part : layout.parts) EXPECT_EQ(part.offset % 512, 0U);
  }
}

}  // namespace
