// Loops, epochs, positions and refusals of a loader.
#include <accelerant/data/loader.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <ranges>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/gathered_log.h"
#include "support/index_dataset.h"

namespace {

namespace data = accelerant::data;
using data::LoaderOptions;

TEST(Loader, GroupsSamplesIntoBatches) {
  EXPECT_EQ(loop_over(index_loader(7, {.batch_size = 3})),
            (IndexBatches{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(loop_over(index_loader(7, {.batch_size = 3, .drop_last = true})),
            (IndexBatches{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(index_loader(7, {.batch_size = 3}).length(), 3);
  EXPECT_EQ(index_loader(7, {.batch_size = 3, .drop_last = true}).length(), 2);
}

TEST(Loader, IsAnInputRangeAndAValue) {
  static_assert(std::ranges::input_range<IndexLoader>);
  static_assert(std::ranges::input_range<const IndexLoader>);
  static_assert(std::copyable<IndexLoader>);
  struct Holder {
    IndexLoader member;
  };
  const Holder holder{index_loader(4, {.batch_size = 2})};
  const IndexLoader copy = holder.member;
  loop_over(copy);
  EXPECT_EQ(holder.member.epoch(), 1);  // copies share their position
}

TEST(Loader, ShufflesAnewInEveryEpoch) {
  const auto loader = index_loader(50, {.batch_size = 8, .shuffle = true, .seed = 3});
  const IndexBatch first = joined(loop_over(loader));
  const IndexBatch second = joined(loop_over(loader));
  EXPECT_EQ(sorted(first), counting(50));
  EXPECT_EQ(sorted(second), counting(50));
  EXPECT_NE(first, second);
  loader.set_epoch(0);
  EXPECT_EQ(joined(loop_over(loader)), first);
  EXPECT_EQ(joined(loop_over(loader)), second);
  const auto same = index_loader(50, {.batch_size = 5, .shuffle = true, .seed = 3});
  EXPECT_EQ(joined(loop_over(same)), first);
  const auto other = index_loader(50, {.batch_size = 5, .shuffle = true, .seed = 4});
  EXPECT_NE(joined(loop_over(other)), first);
}

TEST(Loader, EpochAdvancesHoweverTheLoopEnds) {
  const auto loader = index_loader(10, {.batch_size = 2});
  loop_over(loader);
  EXPECT_EQ(loader.epoch(), 1);
  for (const IndexBatch& batch : loader) {
    EXPECT_EQ(loader.epoch(), 1);
    if (batch[0] == 4) break;
  }
  EXPECT_EQ(loader.epoch(), 2);
  EXPECT_THROW(for ([[maybe_unused]] const IndexBatch& batch
                    : loader) throw std::runtime_error("stop"),
               std::runtime_error);
  EXPECT_EQ(loader.epoch(), 3);
  EXPECT_EQ(loader.position(), 0);
  EXPECT_FALSE(loader.state()->is_active());
  EXPECT_EQ(loop_over(loader).size(), 5U);
}

TEST(Loader, KnowsTheLastBatchWhileItIsProcessed) {
  const auto loader = index_loader(7, {.batch_size = 3});
  for (int epoch = 0; epoch < 2; ++epoch) {
    const Course course = course_of(loader);
    EXPECT_EQ(course.last, (std::vector<bool>{false, false, true}));
    EXPECT_EQ(course.left, (std::vector<int64_t>{3, 2, 1}));
    EXPECT_EQ(course.samples, (std::vector<int64_t>{3, 3, 1}));
    EXPECT_EQ(course.position, (std::vector<int64_t>{3, 6, 7}));
    EXPECT_FALSE(loader.is_last_batch());
    EXPECT_EQ(loader.batches_left(), 3);
    EXPECT_EQ(loader.current_samples(), 0);
  }
  EXPECT_EQ(loader.remainder(), 1);
  EXPECT_EQ(loader.total_batch_size(), 3);
  EXPECT_EQ(loader.dataset_length(), 7);
}

TEST(Loader, DeliversAsItIsPlaced) {
  const auto loader = index_loader(17, {.batch_size = 4});
  const auto second = loader.placed({.rank = 1, .num_processes = 3});
  EXPECT_EQ(loop_over(second), (IndexBatches{{4, 5, 6, 7}, {16, 0, 1, 2}}));
  EXPECT_EQ(second.length(), 2);
  EXPECT_EQ(second.remainder(), 5);
  EXPECT_EQ(second.total_batch_size(), 12);
  EXPECT_EQ(loader.epoch(), 0);  // a state of its own
  const auto split = loader.placed({.rank = 1, .num_processes = 2, .split_batches = true});
  EXPECT_EQ(split.total_batch_size(), 4);
  EXPECT_EQ(loop_over(split), (IndexBatches{{2, 3}, {6, 7}, {10, 11}, {14, 15}, {1, 2}}));
  const auto uneven = loader.placed({.rank = 1, .num_processes = 3, .even_batches = false});
  EXPECT_EQ(loop_over(uneven), (IndexBatches{{4, 5, 6, 7}, {16}}));
  std::vector<int64_t> samples;
  for ([[maybe_unused]] auto& batch : second) samples.push_back(second.current_samples());
  EXPECT_EQ(samples, (std::vector<int64_t>{12, 5}));
}

TEST(Loader, OneProcessIsNotFilledUp) {
  EXPECT_EQ(loop_over(index_loader(5, {.batch_size = 3}).placed({})),
            (IndexBatches{{0, 1, 2}, {3, 4}}));
}

TEST(Loader, PlacementOverridesOptionsAndStartsWhereTheLoaderStood) {
  const auto loader = index_loader(20, {.batch_size = 2, .shuffle = true, .seed = 1});
  loop_over(loader);
  loader.skip_first_batches(3);
  const auto placed = loader.placed({.workers = 2, .prefetch = 1});
  EXPECT_EQ(placed.epoch(), 1);
  EXPECT_EQ(placed.position(), 6);
  EXPECT_EQ(loop_over(placed), loop_over(loader));
  EXPECT_EQ(loader.placed({.seed = 9}).seed(), 9U);
  EXPECT_EQ(loader.placed({}).seed(), 1U);
}

TEST(Loader, SkipsOnceAndKeepsTheEpoch) {
  const auto loader = index_loader(16, {.batch_size = 4});
  loop_over(loader);
  const auto same = skip_first_batches(loader, 2);
  EXPECT_EQ(loader.epoch(), 1);
  EXPECT_EQ(loader.position(), 8);
  EXPECT_EQ(loader.batches_left(), 2);
  EXPECT_EQ(loop_over(same), (IndexBatches{{8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(loop_over(loader).size(), 4U);
  loader.skip_first_batches(100);
  EXPECT_TRUE(loop_over(loader).empty());
  EXPECT_EQ(loader.epoch(), 4);
}

TEST(Loader, SkippingCountsStepsOfAProcess) {
  const auto loader = index_loader(16, {.batch_size = 2}).placed({.rank = 1, .num_processes = 2});
  loader.skip_first_batches(3);
  EXPECT_EQ(loop_over(loader), (IndexBatches{{14, 15}}));
}

TEST(Loader, SavesWhatWasHandedOut) {
  const LoaderOptions options{.batch_size = 3, .shuffle = true, .seed = 5, .workers = 2};
  const auto loader = index_loader(20, options);
  loop_over(loader);
  nlohmann::json state;
  IndexBatches before, after;
  for (const IndexBatch& batch : loader) {
    (state.is_null() ? before : after).push_back(batch);
    if (before.size() == 3 && state.is_null()) state = loader.state_dict();
  }
  EXPECT_EQ(state,
            (nlohmann::json{{"seed", 5}, {"epoch", 1}, {"position", 9}, {"dataset_length", 20}}));
  const auto resumed = index_loader(20, {.batch_size = 3, .shuffle = true});
  resumed.load_state_dict(state);
  EXPECT_EQ(resumed.epoch(), 1);
  EXPECT_EQ(resumed.position(), 9);
  EXPECT_EQ(resumed.batches_left(), 4);
  EXPECT_EQ(loop_over(resumed), after);
  EXPECT_EQ(loop_over(resumed), loop_over(loader));  // the next epoch is the same, too
  // With another batch size and another number of processes, the remaining samples follow.
  const auto wider = index_loader(20, {.batch_size = 4, .shuffle = true});
  wider.load_state_dict(state);
  EXPECT_EQ(joined(loop_over(wider)), joined(after));
  const auto parallel = index_loader(20, {.batch_size = 3, .shuffle = true});
  IndexBatch together;
  std::vector<IndexBatches> ranks;
  for (int64_t rank = 0; rank < 2; ++rank) {
    const auto part = parallel.placed({.rank = rank, .num_processes = 2, .even_batches = false});
    part.load_state_dict(state);
    ranks.push_back(loop_over(part));
  }
  for (std::size_t step = 0; step < ranks[0].size(); ++step) {
    for (const auto& rank : ranks) {
      if (step < rank.size()) together.insert(together.end(), rank[step].begin(), rank[step].end());
    }
  }
  EXPECT_EQ(together, joined(after));
}

TEST(Loader, AStateOfTheLastBatchLeavesNothingOfTheEpoch) {
  const auto loader = index_loader(4, {.batch_size = 2});
  nlohmann::json state;
  for ([[maybe_unused]] auto& batch : loader) state = loader.state_dict();
  loader.load_state_dict(state);
  EXPECT_EQ(loader.epoch(), 0);
  EXPECT_TRUE(loop_over(loader).empty());
  EXPECT_EQ(loader.epoch(), 1);
  EXPECT_EQ(loop_over(loader).size(), 2U);
}

TEST(Loader, LoadingInsideOfALoopIsForTheNextOne) {
  const auto loader = index_loader(6, {.batch_size = 2});
  nlohmann::json state;
  for (const IndexBatch& batch : loader) {
    if (batch[0] == 0) state = loader.state_dict();
    if (batch[0] == 4) {
      loader.load_state_dict(state);
      EXPECT_EQ(loader.state_dict(), state);
      break;
    }
  }
  EXPECT_EQ(loader.epoch(), 0);
  EXPECT_EQ(loop_over(loader), (IndexBatches{{2, 3}, {4, 5}}));
  for ([[maybe_unused]] auto& batch : loader) loader.set_epoch(7);
  EXPECT_EQ(loader.epoch(), 7);
}

TEST(Loader, RefusesStatesThatAreNotItsOwn) {
  const auto loader = index_loader(6, {.batch_size = 2, .seed = 1});
  const nlohmann::json good = loader.state_dict();
  auto bad = good;
  bad["dataset_length"] = 7;
  EXPECT_TRUE(
      contains(error_of([&] { loader.load_state_dict(bad); }), "expected a data set of length 7"));
  bad = good;
  bad.erase("epoch");
  EXPECT_TRUE(contains(error_of([&] { loader.load_state_dict(bad); }), "epoch"));
  bad = good;
  bad["position"] = 7;
  EXPECT_TRUE(contains(error_of([&] { loader.load_state_dict(bad); }), "at most 6"));
  bad["position"] = -1;
  EXPECT_TRUE(contains(error_of([&] { loader.load_state_dict(bad); }), "invalid position"));
  EXPECT_TRUE(
      contains(error_of([&] { loader.load_state_dict(nlohmann::json::array()); }), "state"));
  EXPECT_EQ(loop_over(loader).size(), 3U);
}

TEST(Loader, TellsWhenLoopsBeginAndEnd) {
  std::vector<std::pair<bool, int64_t>> calls;
  const auto loader =
      index_loader(4, {.batch_size = 2}).placed({.on_loop = [&](auto& state, bool active) {
        EXPECT_EQ(state.is_active(), active);
        calls.emplace_back(active, state.epoch());
      }});
  loop_over(loader);
  for ([[maybe_unused]] auto& batch : loader) break;
  EXPECT_EQ(calls,
            (std::vector<std::pair<bool, int64_t>>{{true, 0}, {false, 1}, {true, 1}, {false, 2}}));
}

TEST(Loader, RefusesTwoLoopsAtOnce) {
  const auto loader = index_loader(4);
  {
    const auto iterator = loader.begin();
    EXPECT_TRUE(contains(error_of([&] { loader.begin(); }), "Two loops"));
  }
  EXPECT_EQ(loop_over(loader).size(), 4U);
  auto iterator = loader.begin();
  while (iterator != loader.end()) ++iterator;
  EXPECT_EQ(loop_over(loader).size(), 4U);  // a loop at its end has ended
  ++iterator;                               // and stays so
  EXPECT_TRUE(iterator == loader.end());
}

TEST(Loader, NestedLoopsOverTwoLoadersDoNotMix) {
  const auto train = index_loader(4, {.batch_size = 2});
  const auto validate = index_loader(3);
  for ([[maybe_unused]] auto& batch : train) {
    const bool last = train.is_last_batch();
    loop_over(validate);
    EXPECT_EQ(train.is_last_batch(), last);
  }
  EXPECT_EQ(validate.epoch(), 2);
}

TEST(Loader, AnEmptyDataSetIsAnEmptyLoopWithAWarning) {
  const GatheredLog log;
  const auto loader = index_loader(0, {.batch_size = 4, .shuffle = true});
  EXPECT_TRUE(loop_over(loader).empty());
  EXPECT_EQ(log.messages().size(), 1U);
  EXPECT_TRUE(contains(log.text(), "has no samples"));
  EXPECT_EQ(loader.length(), 0);
  EXPECT_EQ(loader.epoch(), 1);
}

// --- Samplers ------------------------------------------------------------------------------------

struct Backwards : data::Sampler {
  int64_t size() const override { return 5; }
  std::vector<int64_t> order(uint64_t, int64_t epoch) const override {
    return {4, 3, 2, 1, epoch == 0 ? 0 : 9};
  }
};

struct Pairs : data::BatchSampler {
  std::vector<std::vector<int64_t>> batches(uint64_t, int64_t epoch) const override {
    if (epoch == 1) return {{5}};
    if (epoch == 2) return {{0, 99}};
    return {{0, 1, 2}, {3}, {4, 5}};
  }
};

TEST(LoaderSamplers, AnOrderOfOnesOwn) {
  const auto loader = index_loader(9, {.batch_size = 2, .sampler = std::make_shared<Backwards>()});
  EXPECT_EQ(loop_over(loader), (IndexBatches{{4, 3}, {2, 1}, {0}}));
  EXPECT_EQ(loader.length(), 3);
  EXPECT_TRUE(contains(error_of([&] { loop_over(loader); }), "expected 0 <= index < 9, got 9"));
}

TEST(LoaderSamplers, BatchesOfOnesOwn) {
  const auto loader = index_loader(6, {.batch_sampler = std::make_shared<Pairs>()});
  EXPECT_EQ(loader.length(), 3);
  std::vector<int64_t> samples;
  nlohmann::json state;
  for ([[maybe_unused]] auto& batch : loader) {
    samples.push_back(loader.current_samples());
    if (samples.size() == 1) state = loader.state_dict();
  }
  EXPECT_EQ(samples, (std::vector<int64_t>{3, 1, 2}));
  EXPECT_EQ(loader.length(), 1);  // in epoch 1
  EXPECT_EQ(loop_over(loader), (IndexBatches{{5}}));
  EXPECT_TRUE(contains(error_of([&] { loop_over(loader); }), "got 99"));
  loader.load_state_dict(state);
  EXPECT_EQ(loop_over(loader), (IndexBatches{{3}, {4, 5}}));
  const auto second = loader.placed({.rank = 1, .num_processes = 2});
  second.set_epoch(0);
  EXPECT_EQ(loop_over(second), (IndexBatches{{3}, {0, 1, 2}}));
}

TEST(LoaderSamplers, RandomOnesFollowSeedAndEpoch) {
  const auto sampler = std::make_shared<data::WeightedSampler>(std::vector<double>{1, 1, 8}, 30);
  const auto loader = index_loader(3, {.batch_size = 10, .seed = 2, .sampler = sampler});
  EXPECT_EQ(joined(loop_over(loader)), sampler->order(2, 0));
  EXPECT_EQ(joined(loop_over(loader)), sampler->order(2, 1));
}

TEST(LoaderSamplers, ASampleThatComesTwiceDrawsTwice) {
  struct Drawing {
    int64_t size() const { return 2; }
    int64_t get(int64_t, data::Random& random) const { return random.integer(1'000'000'000); }
  };
  const auto sampler = std::make_shared<data::RandomSampler>(
      2, data::RandomSamplerOptions{.replacement = true, .num_samples = 40});
  const auto loader = index_loader(Drawing{}, {.batch_size = 4, .seed = 1, .sampler = sampler});
  const IndexBatches all = loop_over(loader);
  const IndexBatch values = sorted(joined(all));
  EXPECT_EQ(std::adjacent_find(values.begin(), values.end()), values.end());
  loader.set_epoch(0);
  loader.skip_first_batches(3);  // a resumed run draws the same
  EXPECT_EQ(loop_over(loader), IndexBatches(all.begin() + 3, all.end()));
}

// --- Refusals ------------------------------------------------------------------------------------

struct NoSize {
  std::optional<std::size_t> size() const { return std::nullopt; }
  int64_t get(int64_t index) const { return index; }
};

TEST(Loader, RefusesUselessOptions) {
  const auto error = [](LoaderOptions options) {
    return error_of([&] { index_loader(4, options); });
  };
  const auto sampler = std::make_shared<Backwards>();
  const auto batches = std::make_shared<Pairs>();
  EXPECT_TRUE(contains(error({.batch_size = 0}), "expected at least 1, got 0"));
  EXPECT_TRUE(contains(error({.workers = -1}), "expected at least 0, got -1"));
  EXPECT_TRUE(contains(error({.prefetch = 0}), "prefetch"));
  EXPECT_TRUE(contains(error({.shuffle = true, .sampler = sampler}), "sampler or shuffle"));
  EXPECT_TRUE(contains(error({.batch_size = 2, .batch_sampler = batches}), "batch sampler"));
  EXPECT_TRUE(contains(error({.shuffle = true, .batch_sampler = batches}), "batch sampler"));
  EXPECT_TRUE(contains(error({.drop_last = true, .batch_sampler = batches}), "batch sampler"));
  EXPECT_TRUE(contains(error({.sampler = sampler, .batch_sampler = batches}), "batch sampler"));
  EXPECT_TRUE(contains(error_of([] { index_loader(NoSize{}); }), "how many samples"));
  const auto loader = index_loader(4, {.batch_size = 3});
  EXPECT_TRUE(contains(
      error_of([&] { loader.placed({.num_processes = 2, .split_batches = true}); }), "split"));
  EXPECT_TRUE(contains(error_of([&] { loader.placed({.rank = 2, .num_processes = 2}); }), "rank"));
  EXPECT_TRUE(contains(error_of([&] { loader.set_epoch(-1); }), "negative"));
  EXPECT_TRUE(contains(error_of([&] { loader.skip_first_batches(-1); }), "negative"));
}

TEST(Loader, RefusesADeviceThatIsNotThere) {
  const auto loader = index_loader(4).placed({.device = at::Device(at::kXLA, 0)});
  EXPECT_TRUE(contains(error_of([&] { loop_over(loader); }), "got xla:0"));
  EXPECT_EQ(loader.epoch(), 0);
}

}  // namespace
