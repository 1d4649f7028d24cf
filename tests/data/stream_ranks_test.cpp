// Streams that several processes share: each reads for itself and keeps its part.
#include <accelerant/data/loader.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "support/expect_error.h"
#include "support/index_dataset.h"
#include "support/number_stream.h"
#include "support/random_seed.h"

namespace {

namespace data = accelerant::data;
using data::LoaderOptions;
using data::Placement;

template <class D>
std::vector<IndexBatches> all_ranks(const D& dataset, const LoaderOptions& options,
                                    Placement placement) {
  std::vector<IndexBatches> ranks;
  for (placement.rank = 0; placement.rank < placement.num_processes; ++placement.rank) {
    ranks.push_back(loop_over(index_loader(dataset, options).placed(placement)));
  }
  return ranks;
}

TEST(StreamRanks, PartsAreContiguousAndCompletedFromTheStart) {
  const NumberStream stream = number_stream<NumberStream>(20);
  EXPECT_EQ(all_ranks(stream, {.batch_size = 3}, {.num_processes = 2}),
            (std::vector<IndexBatches>{{{0, 1, 2}, {6, 7, 8}, {12, 13, 14}, {18, 19, 0}},
                                       {{3, 4, 5}, {9, 10, 11}, {15, 16, 17}, {1, 2, 3}}}));
  EXPECT_EQ(all_ranks(number_stream<NumberStream>(2), {.batch_size = 3}, {.num_processes = 2}),
            (std::vector<IndexBatches>{{{0, 1, 0}}, {{1, 0, 1}}}));
  EXPECT_EQ(all_ranks(number_stream<NumberStream>(21), {.batch_size = 4},
                      {.num_processes = 2, .split_batches = true})[1],
            (IndexBatches{{2, 3}, {6, 7}, {10, 11}, {14, 15}, {18, 19}, {1, 2}}));
}

TEST(StreamRanks, DropLastDropsTheWholeIncompleteRound) {
  const auto ranks = all_ranks(number_stream<NumberStream>(11),
                               {.batch_size = 3, .drop_last = true}, {.num_processes = 2});
  EXPECT_EQ(ranks, (std::vector<IndexBatches>{{{0, 1, 2}}, {{3, 4, 5}}}));
}

TEST(StreamRanks, UnevenRanksGiveWhatTheyHave) {
  EXPECT_EQ(all_ranks(number_stream<NumberStream>(8), {.batch_size = 3},
                      {.num_processes = 2, .even_batches = false}),
            (std::vector<IndexBatches>{{{0, 1, 2}, {6, 7}}, {{3, 4, 5}}}));
}

struct Setting {
  int64_t length;
  LoaderOptions options;
  Placement placement;
  int64_t resume_processes;
};

Setting random_setting(std::mt19937_64& engine) {
  const auto choose = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine);
  };
  Setting setting{};
  setting.length = choose(0, 3) == 0 ? choose(1, 5) : choose(1, 60);
  setting.placement.num_processes = choose(1, 5);
  setting.placement.split_batches = choose(0, 2) == 0;
  setting.placement.even_batches = choose(0, 1) == 0;
  setting.options.batch_size =
      choose(1, 5) * (setting.placement.split_batches ? setting.placement.num_processes : 1);
  setting.options.drop_last = choose(0, 3) == 0;
  setting.options.workers = choose(0, 20) == 0 ? 2 : 0;
  setting.resume_processes = setting.placement.split_batches ? 1 : choose(1, 4);
  return setting;
}

// One rank of a stream gives the same batches, and reports the same state on the way, as the same
// numbers do by index.
template <class Stream>
void expect_like_indexed(const Setting& setting, bool knows_its_size) {
  for (int64_t rank = 0; rank < setting.placement.num_processes; ++rank) {
    Placement placement = setting.placement;
    placement.rank = rank;
    const auto indexed = index_loader(setting.length, setting.options).placed(placement);
    const auto stream =
        index_loader(number_stream<Stream>(setting.length), setting.options).placed(placement);
    if (knows_its_size) {
      ASSERT_EQ(stream.length(), indexed.length());
      ASSERT_EQ(stream.remainder(), indexed.remainder());
      ASSERT_EQ(stream.batches_left(), indexed.batches_left());
    }
    nlohmann::json state = stream.state_dict();
    int64_t taken = 0;
    auto other = stream.begin();
    for (const IndexBatch& batch : indexed) {
      ASSERT_FALSE(other == std::default_sentinel);
      ASSERT_EQ(*other, batch);
      ASSERT_EQ(stream.is_last_batch(), indexed.is_last_batch());
      ASSERT_EQ(stream.position(), indexed.position());
      ASSERT_EQ(stream.current_samples(), indexed.current_samples());
      if (knows_its_size) {
        ASSERT_EQ(stream.batches_left(), indexed.batches_left());
      }
      // A rank without a part in the last, uneven round never sees it.
      if (stream.is_last_batch() && stream.position() == setting.length) {
        ASSERT_EQ(stream.remainder(), indexed.remainder());
      }
      if (++taken == 2) state = stream.state_dict();
      ++other;
    }
    ASSERT_TRUE(other == std::default_sentinel);
    // Resumes in the middle, with another number of processes.
    placement.num_processes = setting.resume_processes;
    placement.rank = rank % setting.resume_processes;
    const auto resumed =
        index_loader(number_stream<Stream>(setting.length), setting.options).placed(placement);
    const auto expected = index_loader(setting.length, setting.options).placed(placement);
    state.erase("dataset_length");
    resumed.load_state_dict(state);
    expected.load_state_dict(state);
    ASSERT_EQ(loop_over(resumed), loop_over(expected));
  }
}

TEST(StreamRanks, GiveWhatIndexedDataSetsGive) {
  const uint64_t seed = random_seed();
  std::mt19937_64 engine(seed);
  for (int i = 0; i < 1000; ++i) {
    const Setting setting = random_setting(engine);
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", number " << i << ": length " << setting.length
                 << ", batch_size " << setting.options.batch_size << ", processes "
                 << setting.placement.num_processes << ", split " << setting.placement.split_batches
                 << ", even " << setting.placement.even_batches << ", drop_last "
                 << setting.options.drop_last << ", resumed by " << setting.resume_processes);
    expect_like_indexed<NumberStream>(setting, false);
    expect_like_indexed<SizedStream>(setting, true);
    expect_like_indexed<CountingSkipStream>(setting, false);
    expect_like_indexed<SizedSkipStream>(setting, true);
    if (HasFailure()) return;
  }
}

TEST(StreamRanks, SamplesOfOthersAreNotMadeWhereTheStreamCanSkip) {
  constexpr int64_t length = 1200;  // 100 rounds of 12
  const LoaderOptions options{.batch_size = 3};
  const Placement placement{.rank = 2, .num_processes = 4};
  const auto sized = number_stream<SizedSkipStream>(length);
  loop_over(index_loader(sized, options).placed(placement));
  EXPECT_EQ(sized.calls->reads, length / 4);  // nothing will need padding
  const auto counting = number_stream<CountingSkipStream>(length);
  loop_over(index_loader(counting, options).placed(placement));
  EXPECT_EQ(counting.calls->reads, length / 4 + 9);  // the first round may be needed at the end
  const auto plain = number_stream<NumberStream>(length);
  loop_over(index_loader(plain, options).placed(placement));
  EXPECT_EQ(plain.calls->reads, length);
}

// --- Streams with parts of their own -------------------------------------------------------------

// Every process has its own hundred numbers.
struct Files {
  int64_t rank = 0;
  int64_t processes = 1;
  int64_t length = 7;
  int64_t place = 0;
  void reset() { place = 0; }
  void shard(int64_t own_rank, int64_t num_processes) {
    rank = own_rank;
    processes = num_processes;
  }
  std::optional<int64_t> next() {
    return place < length ? std::optional(100 * rank + place++) : std::nullopt;
  }
};

TEST(StreamRanks, DataSetsMayShardThemselves) {
  const auto loader =
      index_loader(Files{}, {.batch_size = 3}).placed({.rank = 1, .num_processes = 2});
  EXPECT_EQ(loader.length(), std::nullopt);
  nlohmann::json state;
  IndexBatches batches;
  for (const IndexBatch& batch : loader) {
    batches.push_back(batch);
    if (batches.size() == 1) state = loader.state_dict();
    EXPECT_EQ(loader.is_last_batch(), batches.size() == 3);
  }
  EXPECT_EQ(batches, (IndexBatches{{100, 101, 102}, {103, 104, 105}, {106}}));
  EXPECT_EQ(state.at("position"), 6);
  loader.load_state_dict(state);
  EXPECT_EQ(loop_over(loader), (IndexBatches{{103, 104, 105}, {106}}));
  const auto three =
      index_loader(Files{}, {.batch_size = 3}).placed({.rank = 1, .num_processes = 3});
  EXPECT_TRUE(contains(error_of([&] { three.load_state_dict(state); }), "other parts"));
  EXPECT_EQ(loop_over(index_loader(Files{}, {.batch_size = 7})), (IndexBatches{counting(7)}));
  const auto mapped = data::map(Files{}, [](int64_t value) { return -value; });
  EXPECT_EQ(loop_over(index_loader(mapped, {.batch_size = 2, .drop_last = true})
                          .placed({.rank = 1, .num_processes = 2})),
            (IndexBatches{{-100, -101}, {-102, -103}, {-104, -105}}));
}

// --- Streams of ready batches --------------------------------------------------------------------

struct Batches {
  static constexpr bool gives_batches = true;
  std::vector<IndexBatch> batches;
  std::size_t place = 0;
  void reset() { place = 0; }
  std::optional<IndexBatch> next() {
    return place < batches.size() ? std::optional(batches[place++]) : std::nullopt;
  }
};

TEST(StreamRanks, ReadyBatchesAreDealtInTurn) {
  const Batches batches{{{0, 1, 2}, {3, 4}, {5, 6, 7, 8}, {9}, {10, 11}}};
  const auto rank = [&](Placement placement) { return index_loader(batches).placed(placement); };
  EXPECT_EQ(loop_over(rank({.rank = 0, .num_processes = 2})),
            (IndexBatches{{0, 1, 2}, {5, 6, 7, 8}, {10, 11}}));
  EXPECT_EQ(loop_over(rank({.rank = 1, .num_processes = 2})),
            (IndexBatches{{3, 4}, {9}, {0, 1, 2}}));
  EXPECT_EQ(loop_over(rank({.rank = 1, .num_processes = 2, .even_batches = false})),
            (IndexBatches{{3, 4}, {9}}));
  EXPECT_EQ(loop_over(rank({.rank = 6, .num_processes = 7})), (IndexBatches{{3, 4}}));
  const auto loader = rank({.rank = 1, .num_processes = 2});
  std::vector<int64_t> samples, positions, remainders;
  nlohmann::json state;
  for ([[maybe_unused]] const IndexBatch& batch : loader) {
    samples.push_back(loader.current_samples());
    positions.push_back(loader.position());
    remainders.push_back(loader.remainder());
    if (positions.back() == 2) state = loader.state_dict();
  }
  EXPECT_EQ(samples, (std::vector<int64_t>{5, 5, 2}));
  EXPECT_EQ(positions, (std::vector<int64_t>{2, 4, 5}));
  EXPECT_EQ(remainders, (std::vector<int64_t>{0, 0, 2}));
  const auto resumed = rank({.rank = 2, .num_processes = 4});
  resumed.load_state_dict(state);  // batches 2, 3, 4, then the first one again
  EXPECT_EQ(loop_over(resumed), (IndexBatches{{10, 11}}));
  resumed.load_state_dict(state);
  const auto last = rank({.rank = 3, .num_processes = 4});
  last.load_state_dict(state);
  EXPECT_EQ(loop_over(last), (IndexBatches{{0, 1, 2}}));
  EXPECT_TRUE(
      contains(error_of([&] { rank({.num_processes = 2, .split_batches = true}); }), "split"));
}

// --- Refusals ------------------------------------------------------------------------------------

struct OnlyMoved {
  int64_t place = 0;
  std::optional<std::unique_ptr<int64_t>> next() {
    return place < 3 ? std::optional(std::make_unique<int64_t>(place++)) : std::nullopt;
  }
};

TEST(StreamRanks, Refusals) {
  const auto collate = [](std::vector<std::unique_ptr<int64_t>> samples) {
    return static_cast<int64_t>(samples.size());
  };
  const auto moved = data::loader(std::make_shared<OnlyMoved>(), {.batch_size = 1}, collate)
                         .placed({.rank = 1, .num_processes = 2});
  EXPECT_TRUE(contains(error_of([&] {
                         for ([[maybe_unused]] int64_t count : moved) {
                         }
                       }),
                       "cannot be completed"));
  const auto stream = index_loader(number_stream<NumberStream>(3), {.batch_size = 3});
  EXPECT_TRUE(contains(error_of([&] { stream.placed({.rank = 2, .num_processes = 2}); }), "rank"));
  EXPECT_TRUE(contains(
      error_of([&] { stream.placed({.num_processes = 2, .split_batches = true}); }), "split"));
}

}  // namespace
