// Batches that really travel from one process to others.
#include <accelerant/data/detail/batch_channel.h>
#include <accelerant/data/loader.h>
#include <accelerant/dist/world.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support/expect_error.h"
#include "support/index_dataset.h"
#include "support/number_stream.h"
#include "support/ranks.h"

namespace {

namespace data = accelerant::data;
namespace dist = accelerant::dist;

struct Process {
  std::shared_ptr<dist::World> world = dist::World::join(dist::Environment::detect());
  data::Placement placement = {.rank = world->rank(),
                               .num_processes = world->size(),
                               .dispatch_batches = true,
                               .channel = data::batch_channel(world)};
};

RANK_TEST(DispatchRanks, GiveWhatShardedLoadersGive, 3) {
  const Process process;
  data::Placement sharded = process.placement;
  sharded.dispatch_batches = false;
  for (const int64_t length : {24, 25, 2}) {
    for (const bool even : {true, false}) {
      data::Placement dispatched = process.placement;
      dispatched.even_batches = sharded.even_batches = even;
      const data::LoaderOptions options{.batch_size = 2, .shuffle = true, .seed = 7, .workers = 1};
      const auto loader = index_loader(length, options).placed(dispatched);
      const auto expected = index_loader(length, options).placed(sharded);
      for (int epoch = 0; epoch < 3; ++epoch) EXPECT_EQ(loop_over(loader), loop_over(expected));
      const auto stream =
          index_loader(number_stream<NumberStream>(length), {.batch_size = 2}).placed(dispatched);
      const auto read =
          index_loader(number_stream<NumberStream>(length), {.batch_size = 2}).placed(sharded);
      for (int epoch = 0; epoch < 2; ++epoch) EXPECT_EQ(loop_over(stream), loop_over(read));
    }
  }
}

RANK_TEST(DispatchRanks, LargeBatchesAndEarlyBreaks, 2) {
  const Process process;
  // 8 MB per process and step: more than sockets hold.
  const auto collate = [](const std::vector<int64_t>& samples) {
    return torch::full({1 << 21}, static_cast<double>(samples[0]));
  };
  const auto loader =
      data::loader(IndexDataset{40}, {.batch_size = 2}, collate).placed(process.placement);
  for (int epoch = 0; epoch < 2; ++epoch) {
    int64_t step = 0;
    for (const torch::Tensor& batch : loader) {
      const auto expected = static_cast<double>(4 * step + 2 * process.world->rank());
      EXPECT_EQ(batch.min().item<double>(), expected);
      EXPECT_EQ(batch.max().item<double>(), expected);
      if (++step == 3) break;
    }
    EXPECT_EQ(step, 3);
  }
  int64_t steps = 0;
  for ([[maybe_unused]] const torch::Tensor& batch : loader) ++steps;
  EXPECT_EQ(steps, 10);
}

struct FailsOnTheWay {
  int64_t size() const { return 100; }
  int64_t get(int64_t index) const {
    if (index == 9) throw std::runtime_error("the disk is gone");
    return index;
  }
};

RANK_TEST(DispatchRanks, AnErrorOfRank0EndsAllLoops, 2) {
  const Process process;
  const auto loader = index_loader(FailsOnTheWay{}, {.batch_size = 2}).placed(process.placement);
  const std::string message = whole_error_of([&] { loop_over(loader); });
  EXPECT_TRUE(contains(message, "the disk is gone"));
  const auto next = index_loader(8, {.batch_size = 2}).placed(process.placement);
  EXPECT_EQ(loop_over(next).size(), 2U);
}

// They exchange nothing, so a process may loop alone.
RANK_TEST(DispatchRanks, ShardedLoopsNeedNobody, 2) {
  const Process process;
  data::Placement sharded = process.placement;
  sharded.dispatch_batches = false;
  if (process.world->rank() == 0) {
    EXPECT_EQ(loop_over(index_loader(8, {.batch_size = 2, .shuffle = true}).placed(sharded)).size(),
              2U);
    EXPECT_EQ(
        loop_over(index_loader(number_stream<NumberStream>(8), {.batch_size = 2}).placed(sharded))
            .size(),
        2U);
  }
}

RANK_TEST(DispatchRanks, AWorldThatIsGoneIsAnError, 2) {
  Process process;
  const auto loader = index_loader(8, {.batch_size = 2}).placed(process.placement);
  process.world.reset();
  EXPECT_TRUE(contains(error_of([&] { loop_over(loader); }), "exchange batches"));
}

}  // namespace
