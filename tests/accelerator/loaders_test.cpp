// Prepared loaders: order, positions, lengths and remainders.
#include <gtest/gtest.h>

#include "accelerator/helpers.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;

std::vector<int64_t> rows_of(const accelerant::data::Loader<std::tuple<torch::Tensor>>& loader) {
  std::vector<int64_t> rows;
  for (auto&& [x] : loader) {
    for (int64_t i = 0; i < x.size(0); ++i) rows.push_back(x[i].item<int64_t>());
  }
  return rows;
}

TEST(Loaders, TheLastBatchIsKnownWhileItIsProcessed) {
  Accelerator accelerator(on_cpu());
  const auto loader = accelerator.prepare(counting_loader(5, {.batch_size = 2}));
  std::vector<bool> last;
  for ([[maybe_unused]] auto&& batch : loader) last.push_back(loader.is_last_batch());
  EXPECT_EQ(last, (std::vector<bool>{false, false, true}));
}

TEST(Loaders, TheLookAheadIsNotPartOfThePosition) {
  Accelerator accelerator(on_cpu());
  const auto loader = accelerator.prepare(counting_loader(7, {.batch_size = 2}));
  std::vector<int64_t> positions;
  for ([[maybe_unused]] auto&& batch : loader) positions.push_back(loader.position());
  EXPECT_EQ(positions, (std::vector<int64_t>{2, 4, 6, 7}));
}

TEST(Loaders, WorkersAheadDoNotCountAsDelivered) {
  Accelerator accelerator(on_cpu());
  const auto loader =
      accelerator.prepare(counting_loader(40, {.batch_size = 2, .workers = 2, .prefetch = 4}));
  int64_t delivered = 0;
  for ([[maybe_unused]] auto&& batch : loader) {
    delivered += 2;
    EXPECT_EQ(loader.position(), delivered);
    if (delivered == 10) break;
  }
}

TEST(Loaders, TheLengthIsWhatIsDelivered) {
  Accelerator accelerator(on_cpu());
  for (const bool drop_last : {false, true}) {
    for (int64_t length = 1; length < 12; ++length) {
      const auto loader =
          accelerator.prepare(counting_loader(length, {.batch_size = 4, .drop_last = drop_last}));
      int64_t delivered = 0;
      for ([[maybe_unused]] auto&& batch : loader) ++delivered;
      EXPECT_EQ(loader.length(), delivered);
    }
  }
}

TEST(Loaders, TheRemainderCountsTheRowsOfTheLastBatchOfOneProcessToo) {
  Accelerator accelerator(on_cpu());
  EXPECT_EQ(accelerator.prepare(counting_loader(10, {.batch_size = 4})).remainder(), 2);
  EXPECT_EQ(accelerator.prepare(counting_loader(8, {.batch_size = 4})).remainder(), 0);
}

TEST(Loaders, ASkippedLoaderKeepsItsRemainder) {
  Accelerator accelerator(on_cpu());
  const auto loader = accelerator.prepare(counting_loader(10, {.batch_size = 4}));
  loader.skip_first_batches(1);
  std::vector<int64_t> sizes;
  for (auto&& [x] : loader) {
    sizes.push_back(x.size(0));
    EXPECT_EQ(loader.remainder(), 2);
  }
  EXPECT_EQ(sizes, (std::vector<int64_t>{4, 2}));
}

TEST(Loaders, TheOrderDoesNotDependOnTheGlobalGenerator) {
  Accelerator accelerator(on_cpu());
  const auto shuffled = [&] {
    return accelerator.prepare(counting_loader(50, {.shuffle = true, .seed = 3}));
  };
  torch::manual_seed(1);
  const auto first = rows_of(shuffled());
  torch::manual_seed(2);
  torch::rand({100});
  EXPECT_EQ(rows_of(shuffled()), first);
}

TEST(Loaders, EpochsChangeTheOrderAndCanBeRepeated) {
  Accelerator accelerator(on_cpu());
  const auto loader = accelerator.prepare(counting_loader(50, {.shuffle = true, .seed = 3}));
  const auto epoch_0 = rows_of(loader);
  const auto epoch_1 = rows_of(loader);
  EXPECT_NE(epoch_0, epoch_1);
  loader.set_epoch(0);
  EXPECT_EQ(rows_of(loader), epoch_0);
  for ([[maybe_unused]] auto&& batch : loader) break;  // in epoch 1
  EXPECT_EQ(loader.epoch(), 2);
  loader.set_epoch(1);
  loader.skip_first_batches(20);
  EXPECT_EQ(rows_of(loader), std::vector<int64_t>(epoch_1.begin() + 20, epoch_1.end()));
  EXPECT_EQ(loader.epoch(), 2);  // the skip was for one loop only
  EXPECT_EQ(rows_of(loader).size(), 50U);
}

}  // namespace
}  // namespace accelerator_test
