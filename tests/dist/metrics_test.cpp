#include <accelerant/data/loader.h>
#include <accelerant/dist/collectives.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/world.h"

using namespace accelerant;  // NOLINT: what is tested

namespace metrics_test {

using nlohmann::json;

// Sample i is the number i.
struct Numbers {
  int64_t count;
  int64_t size() const { return count; }
  at::Tensor get(int64_t index) const { return torch::tensor(index); }
};

dist::BatchRows rows_of(const data::LoaderState& state) {
  return {.here = state.current_rows(),
          .total = state.rows_to_keep(),
          .everywhere = state.all_have_batch()};
}

struct Setup {
  int64_t length = 0;
  int64_t batch_size = 1;
  bool split_batches = false;
  bool even_batches = true;
  bool drop_last = false;
  int64_t skip = 0;
};

// The numbers that gather_for_metrics returns in an epoch.
std::vector<int64_t> numbers_seen(const dist::World& world, const Setup& setup) {
  auto loader = data::loader(Numbers{setup.length},
                             {.batch_size = setup.batch_size, .drop_last = setup.drop_last})
                    .placed({.rank = world.rank(),
                             .num_processes = world.size(),
                             .split_batches = setup.split_batches,
                             .even_batches = setup.even_batches});
  loader.skip_first_batches(setup.skip);
  std::vector<int64_t> seen;
  for (auto&& batch : loader) {
    const auto rows = rows_of(*loader.state());
    if (!rows.everywhere) break;
    // Also gathers a loss for each process and a table whose rows are not samples.
    const auto [numbers, loss, table] = dist::gather_for_metrics(
        world, rows, std::tuple{batch, batch.sum().to(at::kFloat), torch::ones({41, 2})});
    EXPECT_EQ(loss.numel(), world.size() == 1 ? 1 : world.size());
    EXPECT_EQ(table.size(0), 41 * world.size());
    for (int64_t i = 0; i < numbers.numel(); ++i) seen.push_back(numbers[i].item<int64_t>());

    std::vector<json> objects;
    for (int64_t i = 0; i < batch.numel(); ++i) objects.push_back(batch[i].item<int64_t>());
    const auto joined = dist::gather_objects_for_metrics(world, rows, objects);
    EXPECT_EQ(static_cast<int64_t>(joined.size()), numbers.numel());
    EXPECT_EQ(joined.empty() ? json(-1) : joined.back(), seen.empty() ? -1 : seen.back());
  }
  return seen;
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> numbers;
  for (int64_t i = begin; i < end; ++i) numbers.push_back(i);
  return numbers;
}

// Each sample comes once, in the order of the data set, whatever fills up the last round.
void every_sample_once() {
  const auto world = join_world();
  const int64_t processes = world->size();
  for (const int64_t length : {1, 2, 5, 7, 11, 12, 13, 24, 25}) {
    for (const int64_t batch_size : {1, 3, 4}) {
      EXPECT_EQ(numbers_seen(*world, {.length = length, .batch_size = batch_size}),
                range(0, length))
          << length << " in batches of " << batch_size;
    }
    EXPECT_EQ(numbers_seen(*world,
                           {.length = length, .batch_size = 2 * processes, .split_batches = true}),
              range(0, length));
  }
}

RANK_TEST(Metrics, EverySampleOnceByOneProcess, 1) { every_sample_once(); }
RANK_TEST(Metrics, EverySampleOnceByTwoProcesses, 2) { every_sample_once(); }
RANK_TEST(Metrics, EverySampleOnceByThreeProcesses, 3) { every_sample_once(); }

RANK_TEST(Metrics, DropLastLeavesOutTheWholeIncompleteRound, 3) {
  const auto world = join_world();
  EXPECT_EQ(numbers_seen(*world, {.length = 23, .batch_size = 3, .drop_last = true}), range(0, 18));
}

// Accelerate's resumed loader does not.
RANK_TEST(Metrics, AResumedLoaderKnowsItsRemainder, 2) {
  const auto world = join_world();
  EXPECT_EQ(numbers_seen(*world, {.length = 13, .batch_size = 2, .skip = 2}), range(8, 13));
}

// Without even_batches, ranks have different numbers of rows in the last step, or none.
RANK_TEST(Metrics, UnevenBatchesAreGatheredWhereAllHaveOne, 3) {
  const auto world = join_world();
  // 11 = 3 + 3 + 3, then 2: only rank 0 has a batch in the second step.
  EXPECT_EQ(numbers_seen(*world, {.length = 11, .batch_size = 3, .even_batches = false}),
            range(0, 9));
  // 17 = 9 + 3 + 3 + 2: all have a batch in the second step; the last one is shorter.
  EXPECT_EQ(numbers_seen(*world, {.length = 17, .batch_size = 3, .even_batches = false}),
            range(0, 17));
  const dist::BatchRows not_everywhere{.here = 2, .total = 2, .everywhere = false};
  EXPECT_TRUE(contains(
      error_of([&] { dist::gather_for_metrics(*world, not_everywhere, torch::ones({2})); }),
      "not every process has a batch"));
}

RANK_TEST(Metrics, OnlyWhatHasARowForEachSampleIsCut, 3) {
  const auto world = join_world();
  const dist::BatchRows rows{.here = 4, .total = 5};
  const auto [batch, scalar, vector, features] = dist::gather_for_metrics(
      *world, rows,
      std::tuple{torch::arange(4) + 10 * rank(), torch::tensor(1.0 * rank()),
                 torch::full({7}, rank()), torch::full({4, 3, 2}, rank())});
  EXPECT_TRUE(torch::equal(batch, torch::tensor({0, 1, 2, 3, 10})));
  EXPECT_TRUE(torch::equal(scalar, torch::tensor({0.0, 1.0, 2.0})));
  EXPECT_EQ(vector.numel(), 21);
  EXPECT_EQ(features.sizes(), at::IntArrayRef({5, 3, 2}));
  // The number of rows is not known, so nothing is cut.
  EXPECT_EQ(dist::gather_for_metrics(*world, {}, torch::arange(4)).numel(), 12);
  const auto whole = dist::gather_objects_for_metrics(*world, rows, {rank()});
  EXPECT_EQ(whole, (std::vector<json>{0, 1, 2}));
  // A tensor is not cut just because its length matches one of the batches.
  const dist::BatchRows uneven{.here = rank() == 2 ? 2 : 3, .total = 8};
  const auto [ragged, table] = dist::gather_for_metrics(
      *world, uneven, std::tuple{torch::full({uneven.here, 2}, rank()), torch::ones({3})});
  EXPECT_EQ(ragged.size(0), 8);
  EXPECT_EQ(table.numel(), 9);
  const auto error = whole_error_of([&] {
    dist::gather_for_metrics(*world, rows, torch::ones({4, rank() + 1}));
  });
  EXPECT_TRUE(contains(error, "float32[4, 2]"));
}

}  // namespace metrics_test
