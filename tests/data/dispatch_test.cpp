// Rank 0 reads for all processes. Threads simulate the processes.
#include <accelerant/data/loader.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <random>

#include "support/expect_error.h"
#include "support/fake_channel.h"
#include "support/index_dataset.h"
#include "support/number_stream.h"
#include "support/random_seed.h"

namespace {

namespace data = accelerant::data;
using data::LoaderOptions;
using data::Placement;

// The batches of a loop and everything the loader reports on the way.
struct Seen {
  IndexBatches batches;
  std::vector<nlohmann::json> states;
  bool operator==(const Seen&) const = default;
};

Seen watch(const IndexLoader& loader, int64_t stop_after = -1) {
  Seen seen;
  if (stop_after == 0) return seen;
  for (const IndexBatch& batch : loader) {
    seen.batches.push_back(batch);
    nlohmann::json state = loader.state_dict();
    state["last"] = loader.is_last_batch();
    state["samples"] = loader.current_samples();
    if (const auto left = loader.batches_left()) state["left"] = *left;
    if (const auto length = loader.length()) {
      state["length"] = *length;
      state["remainder"] = loader.remainder();
    }
    seen.states.push_back(std::move(state));
    if (static_cast<int64_t>(seen.batches.size()) == stop_after) break;
  }
  return seen;
}

// One epoch on all ranks: f(rank, placement).
template <class F>
void dispatch_on(FakeNetwork& network, Placement placement, F&& f) {
  placement.dispatch_batches = true;
  on_all_ranks(placement.num_processes, [&](int64_t rank) {
    Placement own = placement;
    own.rank = rank;
    own.channel = network.channel(rank);
    f(rank, own);
  });
}

TEST(Dispatch, OnlyRank0ReadsAndSendsEachItsPart) {
  FakeNetwork network(3);
  std::vector<NumberStream> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(number_stream<NumberStream>(i == 0 ? 20 : 0));
  std::vector<IndexBatches> ranks(3);
  dispatch_on(network, {.num_processes = 3}, [&](int64_t rank, const Placement& placement) {
    const auto place = static_cast<std::size_t>(rank);
    const auto loader = index_loader(streams[place], {.batch_size = 3}).placed(placement);
    ranks[place] = loop_over(loader);
    ranks[place] = loop_over(loader);
  });
  EXPECT_EQ(ranks[0], (IndexBatches{{0, 1, 2}, {9, 10, 11}, {18, 19, 0}}));
  EXPECT_EQ(ranks[2], (IndexBatches{{6, 7, 8}, {15, 16, 17}, {4, 5, 6}}));
  EXPECT_EQ(streams[0].calls->reads, 40);
  for (const std::size_t other : {1, 2}) {
    EXPECT_EQ(streams[other].calls->reads, 0);
    EXPECT_EQ(streams[other].calls->resets, 0);
  }
  EXPECT_EQ(network.under_way(), 0);
}

// Every process gets and knows what it would by reading for itself, with any options, also after a
// resume and after an early break.
template <class D>
void expect_like_sharded(const D& dataset, const LoaderOptions& options, const Placement& placement,
                         int64_t skip, int64_t stop_after) {
  FakeNetwork network(placement.num_processes);
  dispatch_on(network, placement, [&](int64_t rank, const Placement& dispatched) {
    Placement sharded = dispatched;
    sharded.dispatch_batches = false;
    const auto loader = index_loader(dataset, options).placed(dispatched);
    const auto expected = index_loader(dataset, options).placed(sharded);
    ASSERT_EQ(watch(loader, stop_after), watch(expected, stop_after)) << "rank " << rank;
    ASSERT_EQ(loader.epoch(), expected.epoch());
    loader.skip_first_batches(skip);
    expected.skip_first_batches(skip);
    ASSERT_EQ(loader.batches_left(), expected.batches_left());
    ASSERT_EQ(watch(loader), watch(expected)) << "rank " << rank;
  });
  ASSERT_EQ(network.under_way(), 0);
}

TEST(Dispatch, Traps27To29And35To39AreAsInShardedLoops) {
  const uint64_t seed = random_seed();
  std::mt19937_64 engine(seed);
  const auto choose = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine);
  };
  for (int i = 0; i < 400; ++i) {
    const int64_t length = choose(0, 3) == 0 ? choose(1, 5) : choose(1, 60);
    Placement placement{.num_processes = choose(2, 5)};
    placement.split_batches = choose(0, 2) == 0;
    placement.even_batches = choose(0, 1) == 0;
    LoaderOptions options{.seed = static_cast<uint64_t>(choose(0, 1000))};
    options.batch_size = choose(1, 5) * (placement.split_batches ? placement.num_processes : 1);
    options.drop_last = choose(0, 3) == 0;
    options.workers = choose(0, 3) == 0 ? choose(1, 2) : 0;
    const int64_t skip = choose(0, 2);
    // A break must come while all processes are at the same step, before an uneven end.
    const int64_t full =
        length / (options.batch_size * (placement.split_batches ? 1 : placement.num_processes));
    const int64_t stop_after = choose(0, 2) == 0 && full > 0 ? choose(1, full) : -1;
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << ", number " << i << ": length " << length << ", batch_size "
                 << options.batch_size << ", processes " << placement.num_processes << ", split "
                 << placement.split_batches << ", even " << placement.even_batches << ", drop_last "
                 << options.drop_last << ", skip " << skip << ", stop after " << stop_after);
    switch (choose(0, 3)) {
      case 0:
        options.shuffle = true;
        expect_like_sharded(IndexDataset{length}, options, placement, skip, stop_after);
        break;
      case 1:
        expect_like_sharded(number_stream<NumberStream>(length), options, placement, skip,
                            stop_after);
        break;
      case 2:
        expect_like_sharded(number_stream<SizedSkipStream>(length), options, placement, skip,
                            stop_after);
        break;
      default:
        expect_like_sharded(number_stream<CountingSkipStream>(length), options, placement, skip,
                            stop_after);
    }
    if (HasFailure()) return;
  }
}

struct Ready {
  static constexpr bool gives_batches = true;
  static constexpr bool read_by_one_process = true;
  int64_t length = 0;
  int64_t place = 0;
  void reset() { place = 0; }
  std::optional<torch::Tensor> next() {
    if (place == length) return std::nullopt;
    ++place;
    return torch::full({place}, static_cast<double>(place));  // batch n has n rows
  }
};

TEST(Dispatch, ReadyBatchesAreDealtAndStreamsMaySayThatOneProcessReads) {
  FakeNetwork network(3);
  std::vector<std::vector<int64_t>> rows(3);
  on_all_ranks(3, [&](int64_t rank) {
    const auto loader =
        data::loader(Ready{.length = 7})
            .placed({.rank = rank, .num_processes = 3, .channel = network.channel(rank)});
    ASSERT_TRUE(loader.state()->is_dispatched());
    for (torch::Tensor& batch : loader) {
      rows[static_cast<std::size_t>(rank)].push_back(batch.size(0));
      batch.zero_();  // rank 0 must not damage what is handed out again
      if (loader.is_last_batch()) {
        EXPECT_EQ(loader.remainder(), 7);
      }
    }
    for (torch::Tensor& batch : loader) {
      EXPECT_EQ(batch.max().item<double>(), static_cast<double>(batch.size(0)));
      batch.zero_();
    }
  });
  EXPECT_EQ(rows, (std::vector<std::vector<int64_t>>{{1, 4, 7}, {2, 5, 1}, {3, 6, 2}}));
}

// Loaders are identified by their numbers, not by which loop starts first.
TEST(Dispatch, EachLoaderHasItsOwnLine) {
  FakeNetwork network(2);
  std::vector<std::vector<IndexBatches>> seen(2);  // seen by rank 1, by loader
  dispatch_on(network, {.num_processes = 2}, [&](int64_t rank, const Placement& placement) {
    std::vector<IndexLoader> loaders;
    for (const int64_t line : {0, 1}) {
      Placement own = placement;
      own.channel_line = line;
      loaders.push_back(
          index_loader(number_stream<NumberStream>(8 - 4 * line), {.batch_size = 2}).placed(own));
    }
    if (rank == 0) {
      for (const auto& loader : loaders) loop_over(loader);
    } else {
      for (const std::size_t line : {1, 0}) seen[line].push_back(loop_over(loaders[line]));
    }
  });
  EXPECT_EQ(seen[0], (std::vector<IndexBatches>{{{2, 3}, {6, 7}}}));
  EXPECT_EQ(seen[1], (std::vector<IndexBatches>{{{2, 3}}}));
}

// --- What can go wrong ---------------------------------------------------------------------------

struct Breaks {
  int64_t at = 0;
  int64_t size() const { return 100; }
  int64_t get(int64_t index) const {
    if (index == at) throw std::runtime_error("the disk is gone");
    return index;
  }
};

// All processes get rank 0's exception instead of the batch.
TEST(Dispatch, AnExceptionOnRank0ReachesAll) {
  for (const int64_t workers : {0, 2}) {
    for (const int64_t at : {0, 3, 50}) {
      FakeNetwork network(3);
      dispatch_on(network, {.num_processes = 3}, [&](int64_t rank, const Placement& placement) {
        const auto loader =
            index_loader(Breaks{at}, {.batch_size = 2, .workers = workers}).placed(placement);
        int64_t steps = 0;
        const std::string message = whole_error_of([&] {
          for ([[maybe_unused]] const IndexBatch& batch : loader) {
            ++steps;
            EXPECT_FALSE(loader.is_last_batch());
          }
        });
        EXPECT_EQ(steps, at / 6) << "rank " << rank;
        EXPECT_TRUE(contains(message, "the disk is gone"));
        EXPECT_TRUE(contains(message, "sample " + std::to_string(at)));
        if (rank > 0) {
          EXPECT_TRUE(contains(message, "Rank 0"));
        }
        EXPECT_EQ(loader.epoch(), at < 6 ? 0 : 1);  // the same on all ranks
      });
      EXPECT_EQ(network.under_way(), 0);
    }
  }
}

struct BadSampler : data::Sampler {
  int64_t size() const override { return 10; }
  std::vector<int64_t> order(uint64_t, int64_t) const override {
    throw std::runtime_error("no order");
  }
};
struct BadReset : NumberStream {
  void reset() { throw std::runtime_error("no start"); }
};

TEST(Dispatch, SoDoesOneBeforeTheFirstBatch) {
  FakeNetwork network(2);
  dispatch_on(network, {.num_processes = 2}, [&](int64_t, const Placement& placement) {
    const auto sampled =
        index_loader(10, {.sampler = std::make_shared<BadSampler>()}).placed(placement);
    const auto stream = index_loader(number_stream<BadReset>(5)).placed(placement);
    const auto message = [](const auto& loader) -> std::string {
      try {
        loop_over(loader);
      } catch (const std::exception& error) {
        return error.what();
      }
      return "none";
    };
    EXPECT_TRUE(contains(message(sampled), "no order"));
    EXPECT_TRUE(contains(message(stream), "no start"));
  });
}

// Processes that leave a loop at different steps do not disturb the next loop.
TEST(Dispatch, WhatWasLeftUnreadIsDropped) {
  FakeNetwork network(3);
  dispatch_on(network, {.num_processes = 3}, [&](int64_t rank, const Placement& placement) {
    const auto loader = index_loader(60, {.batch_size = 2}).placed(placement);
    watch(loader, rank == 0 ? 5 : 3 - rank);
    const IndexBatches batches = loop_over(loader);
    ASSERT_EQ(batches.size(), 10U);
    EXPECT_EQ(batches[0], (IndexBatch{2 * rank, 2 * rank + 1}));
  });
  EXPECT_EQ(network.under_way(), 0);
}

TEST(Dispatch, AProcessThatStaysBehindIsTold) {
  FakeNetwork network(2);
  dispatch_on(network, {.num_processes = 2}, [&](int64_t rank, const Placement& placement) {
    const auto loader = index_loader(60, {.batch_size = 2}).placed(placement);
    if (rank == 0) {
      watch(loader, 3);
      watch(loader, 1);
    } else {
      EXPECT_TRUE(contains(error_of([&] { loop_over(loader); }), "different steps"));
    }
  });
}

TEST(Dispatch, LoadersDoNotDisturbEachOther) {
  FakeNetwork network(2);
  dispatch_on(network, {.num_processes = 2}, [&](int64_t rank, const Placement& placement) {
    const auto train = index_loader(12, {.batch_size = 2}).placed(placement);
    const auto evaluate = index_loader(8, {.batch_size = 1}).placed(placement);
    IndexBatch seen;
    for (const IndexBatch& batch : train) {
      seen.push_back(batch[0]);
      EXPECT_EQ(joined(loop_over(evaluate)),
                (rank == 0 ? IndexBatch{0, 2, 4, 6} : IndexBatch{1, 3, 5, 7}));
    }
    EXPECT_EQ(seen, (rank == 0 ? IndexBatch{0, 4, 8} : IndexBatch{2, 6, 10}));
  });
}

struct NotSendable {
  std::shared_ptr<int> value;
};

TEST(Dispatch, Refusals) {
  const auto loader = index_loader(10);
  EXPECT_TRUE(contains(
      error_of([&] { loader.placed({.num_processes = 2, .dispatch_batches = true}); }), "channel"));
  EXPECT_FALSE(loader.placed({.dispatch_batches = true}).state()->is_dispatched());  // one process
  FakeNetwork network(2);
  const auto opaque =
      data::loader(IndexDataset{4}, {}, [](const std::vector<int64_t>&) {
        return NotSendable{};
      }).placed({.num_processes = 2, .dispatch_batches = true, .channel = network.channel(0)});
  EXPECT_TRUE(contains(error_of([&] { opaque.begin(); }), "cannot be sent"));
}

// --- Batches of many parts -----------------------------------------------------------------------

struct Sample {
  torch::Tensor image;
  std::vector<torch::Tensor> boxes;  // any number of them
  static void visit_fields(auto& self, auto&& visit) {
    visit(self.image);
    visit(self.boxes);
  }
};

TEST(Dispatch, BatchesMayHaveAnyStructure) {
  using Batch =
      std::tuple<Sample, std::map<std::string, torch::Tensor>, std::vector<std::string>, int>;
  const auto collate = [](const std::vector<int64_t>& samples) {
    Batch batch;
    auto& [sample, named, texts, number] = batch;
    sample.image = torch::tensor(samples);
    for (const int64_t i : samples) {
      sample.boxes.insert(sample.boxes.end(), static_cast<std::size_t>(i), torch::full({2}, i));
      named[std::to_string(i)] = torch::ones({i});
      texts.push_back("sample " + std::to_string(i));
    }
    number = static_cast<int>(samples[0]);
    return batch;
  };
  FakeNetwork network(2);
  dispatch_on(network, {.num_processes = 2}, [&](int64_t rank, const Placement& placement) {
    int64_t step = 0;
    for (auto& [sample, named, texts, number] :
         data::loader(IndexDataset{8}, {.batch_size = 2}, collate).placed(placement)) {
      const int64_t first = 4 * step + 2 * rank;
      EXPECT_TRUE(sample.image.equal(torch::tensor({first, first + 1})));
      EXPECT_EQ(static_cast<int64_t>(sample.boxes.size()), 2 * first + 1);
      EXPECT_EQ(named.at(std::to_string(first)).numel(), first);
      EXPECT_EQ(texts.at(1), "sample " + std::to_string(first + 1));
      EXPECT_EQ(number, first);
      ++step;
    }
    EXPECT_EQ(step, 2);
  });
}

}  // namespace
