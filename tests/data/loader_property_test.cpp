// What must hold for every loader, tried on thousands of random ones.
#include <accelerant/data/loader.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "support/index_dataset.h"
#include "support/random_seed.h"

namespace {

namespace data = accelerant::data;

constexpr int kConfigurations = 10'000;

struct Configuration {
  int64_t length = 0;
  data::LoaderOptions options = {};
  bool split = false;
  bool even = true;

  IndexLoader loader(int64_t rank, int64_t processes) const {
    return index_loader(length, options)
        .placed({.rank = rank,
                 .num_processes = processes,
                 .split_batches = split,
                 .even_batches = even});
  }
};

class Choice {
 public:
  explicit Choice(uint64_t seed) : engine_(seed) {}
  int64_t operator()(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  bool operator()(double probability) { return std::bernoulli_distribution(probability)(engine_); }

 private:
  std::mt19937_64 engine_;
};

Configuration random_configuration(Choice& choose, int64_t processes) {
  Configuration result;
  result.length = choose(0.2) ? choose(1, 5) : choose(1, 120);
  result.split = choose(0.3);
  result.even = choose(0.5);
  result.options.batch_size = choose(1, 12) * (result.split ? processes : 1);
  result.options.shuffle = choose(0.7);
  result.options.drop_last = choose(0.3);
  result.options.seed = static_cast<uint64_t>(choose(0, 1 << 30));
  // Threads cost time, so only some loaders have them.
  result.options.workers = choose(0.1) ? choose(1, 3) : 0;
  result.options.prefetch = choose(1, 3);
  return result;
}

// The batches of all processes in one list, step by step.
IndexBatch together(const std::vector<IndexBatches>& ranks) {
  IndexBatch all;
  std::size_t steps = 0;
  for (const auto& rank : ranks) steps = std::max(steps, rank.size());
  for (std::size_t step = 0; step < steps; ++step) {
    for (const auto& rank : ranks) {
      if (step < rank.size()) all.insert(all.end(), rank[step].begin(), rank[step].end());
    }
  }
  return all;
}

IndexBatch order_of(const Configuration& configuration, int64_t epoch) {
  if (!configuration.options.shuffle) return counting(configuration.length);
  return data::RandomSampler(configuration.length).order(*configuration.options.seed, epoch);
}

IndexBatch tail(const IndexBatch& all, int64_t start) { return {all.begin() + start, all.end()}; }

// Each index once and in the order of the epoch, then only padding; lengths are right.
void check_epoch(const Configuration& configuration, const std::vector<IndexLoader>& loaders,
                 const std::vector<IndexBatches>& ranks, int64_t epoch) {
  const IndexBatch order = order_of(configuration, epoch);
  const IndexBatch all = together(ranks);
  if (configuration.options.drop_last) {
    ASSERT_EQ(all, IndexBatch(order.begin(), order.begin() + static_cast<int64_t>(all.size())));
    ASSERT_LT(order.size() - all.size(), static_cast<std::size_t>(loaders[0].total_batch_size()));
  } else {
    ASSERT_GE(all.size(), order.size());
    ASSERT_EQ(IndexBatch(all.begin(), all.begin() + configuration.length), order);
    const bool padded = configuration.even && loaders.size() > 1;
    ASSERT_EQ(padded || all.size() == order.size(), true);
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    ASSERT_EQ(loaders[rank].length(), static_cast<int64_t>(ranks[rank].size()));
  }
}

// One process saves in the middle of an epoch; the same number of processes and another one resume.
void check_resume(const Configuration& configuration, const IndexBatches& whole, int64_t rank,
                  int64_t processes, int64_t epoch, int64_t other_processes, int64_t stop_after) {
  const auto loader = configuration.loader(rank, processes);
  loader.set_epoch(epoch);
  nlohmann::json state = loader.state_dict();
  int64_t taken = 0;
  if (stop_after > 0) {
    for (const IndexBatch& batch : loader) {
      ASSERT_EQ(batch, whole[static_cast<std::size_t>(taken)]);
      ASSERT_EQ(loader.is_last_batch(), taken + 1 == static_cast<int64_t>(whole.size()));
      state = loader.state_dict();
      if (++taken == stop_after) break;
    }
  }
  const auto resumed = configuration.loader(rank, processes);
  resumed.load_state_dict(state);
  ASSERT_EQ(resumed.batches_left(), static_cast<int64_t>(whole.size()) - taken);
  ASSERT_EQ(loop_over(resumed), IndexBatches(whole.begin() + taken, whole.end()));
  ASSERT_EQ(resumed.epoch(), epoch + 1);

  const auto skipped = configuration.loader(rank, processes);
  skipped.set_epoch(epoch);
  skipped.skip_first_batches(taken);
  ASSERT_EQ(loop_over(skipped), IndexBatches(whole.begin() + taken, whole.end()));

  Configuration other = configuration;
  other.split = false;
  other.options.drop_last = false;
  std::vector<IndexBatches> ranks;
  for (int64_t r = 0; r < other_processes; ++r) {
    const auto part = other.loader(r, other_processes);
    part.load_state_dict(state);
    ranks.push_back(loop_over(part));
  }
  const IndexBatch left = tail(order_of(configuration, epoch), state.at("position"));
  const IndexBatch all = together(ranks);
  ASSERT_GE(all.size(), left.size());
  ASSERT_EQ(IndexBatch(all.begin(), all.begin() + static_cast<int64_t>(left.size())), left);
}

TEST(LoaderProperties, HoldForRandomConfigurations) {
  Choice choose(random_seed());
  for (int number = 0; number < kConfigurations; ++number) {
    const int64_t processes = choose(0.4) ? 1 : choose(2, 8);
    const Configuration configuration = random_configuration(choose, processes);
    const int64_t epoch = choose(0, 5);
    SCOPED_TRACE(testing::Message()
                 << "configuration " << number << ": length " << configuration.length << ", batch "
                 << configuration.options.batch_size << ", processes " << processes
                 << ", drop_last " << configuration.options.drop_last << ", split "
                 << configuration.split << ", even " << configuration.even << ", workers "
                 << configuration.options.workers);
    std::vector<IndexLoader> loaders;
    std::vector<IndexBatches> ranks;
    for (int64_t rank = 0; rank < processes; ++rank) {
      loaders.push_back(configuration.loader(rank, processes));
      loaders.back().set_epoch(epoch);
      ranks.push_back(loop_over(loaders.back()));
    }
    check_epoch(configuration, loaders, ranks, epoch);
    const int64_t rank = choose(0, processes - 1);
    const IndexBatches& whole = ranks[static_cast<std::size_t>(rank)];
    check_resume(configuration, whole, rank, processes, epoch, choose(1, 8),
                 choose(0, static_cast<int64_t>(whole.size())));
    Configuration other_workers = configuration;
    other_workers.options.workers = configuration.options.workers > 0 ? 0 : choose(0.1) ? 2 : 0;
    const auto again = other_workers.loader(rank, processes);
    again.set_epoch(epoch);
    ASSERT_EQ(loop_over(again), whole);
    if (testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
