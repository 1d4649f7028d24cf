// Worker threads of a loader: same results, clean ends, and errors that say what failed.
#include <accelerant/data/loader.h>
#include <gtest/gtest.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/expect_error.h"
#include "support/index_dataset.h"

namespace {

namespace data = accelerant::data;

class Workers : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(, Workers, testing::Values(0, 1, 2, 4));

// Sample i is i plus its own random number.
struct Noisy {
  int64_t size() const { return 60; }
  int64_t get(int64_t index, data::Random& random) const {
    return 1'000'000 * index + random.integer(1'000'000);
  }
};

TEST_P(Workers, DoNotChangeTheResult) {
  const auto alone = index_loader(Noisy{}, {.batch_size = 7, .shuffle = true, .seed = 1});
  for (const int64_t prefetch : {1, 3}) {
    alone.set_epoch(0);
    const auto loader = index_loader(
        Noisy{},
        {.batch_size = 7, .shuffle = true, .seed = 1, .workers = GetParam(), .prefetch = prefetch});
    const IndexBatches first = loop_over(loader);
    EXPECT_EQ(first, loop_over(alone));
    const IndexBatches second = loop_over(loader);
    EXPECT_EQ(second, loop_over(alone));
    EXPECT_NE(sorted(joined(first)), sorted(joined(second)));  // different random numbers
  }
}

struct Failing {
  int64_t bad = 0;
  int64_t size() const { return 40; }
  int64_t get(int64_t index) const {
    if (index == bad) throw std::invalid_argument("no such picture");
    return index;
  }
};

TEST_P(Workers, ErrorsNameTheSampleAndComeInTheirPlace) {
  const auto loader = index_loader(Failing{17}, {.batch_size = 4, .workers = GetParam()});
  for (int attempt = 0; attempt < 2; ++attempt) {  // the next loop works and fails the same way
    IndexBatches seen;
    try {
      for (const IndexBatch& batch : loader) seen.push_back(batch);
      ADD_FAILURE() << "no error";
    } catch (const accelerant::Error& error) {
      EXPECT_TRUE(contains(error.what(), "sample 17"));
      EXPECT_TRUE(contains(error.what(), "no such picture"));
      EXPECT_THROW(std::rethrow_if_nested(error), std::invalid_argument);
    }
    EXPECT_EQ(joined(seen), counting(16));
    EXPECT_EQ(loader.epoch(), attempt + 1);
    EXPECT_FALSE(loader.state()->is_active());
  }
  loader.skip_first_batches(5);
  EXPECT_EQ(joined(loop_over(loader)), counting(40, 20));
}

TEST_P(Workers, ErrorsOfACollateFunctionNameTheBatch) {
  const auto loader = data::loader(IndexDataset{6}, {.batch_size = 3, .workers = GetParam()},
                                   [](std::vector<int64_t> samples) -> int {
                                     if (samples[0] == 3) throw 5;
                                     return 0;
                                   });
  EXPECT_TRUE(contains(error_of([&] {
                         for ([[maybe_unused]] int batch : loader) {
                         }
                       }),
                       "samples 3, 4, 5"));
}

TEST_P(Workers, StopWhenTheLoopIsLeft) {
  const auto loader = index_loader(100'000, {.batch_size = 2, .workers = GetParam()});
  for (int64_t stop_at = 0; stop_at < 40; stop_at += 2) {
    for (const IndexBatch& batch : loader) {
      if (batch[0] == stop_at) break;
    }
    EXPECT_EQ(loader.epoch(), stop_at / 2 + 1);
  }
  auto outlives = std::make_unique<IndexLoader>(index_loader(100, {.workers = GetParam()}));
  auto iterator = outlives->begin();
  outlives.reset();  // the loop keeps what it needs
  ++iterator;
  EXPECT_EQ((*iterator)[0], 1);
}

// Counts copies, and how many threads are inside at once.
struct Watched {
  struct Record {
    std::atomic<int> copies = 0;
    std::atomic<int> inside = 0;
    std::atomic<int> most_inside = 0;
  };
  std::shared_ptr<Record> record = std::make_shared<Record>();
  int own_state = 0;

  Watched() = default;
  Watched(const Watched& other) : record(other.record) { ++record->copies; }
  Watched(Watched&&) = default;

  int64_t size() const { return 64; }
  int64_t get(int64_t index) {  // not const: must not be called by two threads on one object
    ++own_state;
    const int now = ++record->inside;
    int most = record->most_inside;
    while (most < now && !record->most_inside.compare_exchange_weak(most, now)) {
    }
    std::this_thread::yield();
    --record->inside;
    return index;
  }
};

TEST_P(Workers, HaveCopiesOfADataSetThatIsNotConst) {
  Watched dataset;
  const auto record = dataset.record;
  const auto loader = index_loader(std::move(dataset), {.batch_size = 4, .workers = GetParam()});
  EXPECT_EQ(joined(loop_over(loader)), counting(64));
  EXPECT_EQ(joined(loop_over(loader)), counting(64));
  EXPECT_LE(record->copies, GetParam());
  EXPECT_EQ(record->copies > 0, GetParam() > 0);
}

TEST_P(Workers, ShareOneThatWasGivenToShare) {
  const auto dataset = std::make_shared<Watched>();
  const auto loader = data::loader(dataset, {.batch_size = 4, .workers = GetParam()}, as_list);
  EXPECT_EQ(joined(loop_over(loader)), counting(64));
  EXPECT_EQ(dataset->record->copies, 0);
  EXPECT_EQ(dataset->record->most_inside, 1);
  EXPECT_EQ(dataset->own_state, 64);
}

TEST_P(Workers, TakeAnythingThatCannotBeCopied) {
  struct Owner {
    std::unique_ptr<int64_t> value = std::make_unique<int64_t>(5);
    std::size_t size() const { return 10; }
    int64_t get(std::size_t index) { return *value + static_cast<int64_t>(index); }
  };
  const auto loader = index_loader(Owner{}, {.batch_size = 4, .workers = GetParam()});
  EXPECT_EQ(joined(loop_over(loader)), counting(15, 5));
}

// A stream of 0, 1, ... that starts over in every epoch.
struct Counting {
  int64_t end = 0;
  int64_t next_value = 0;
  void reset() { next_value = 0; }
  std::optional<int64_t> next() {
    if (next_value == end) return std::nullopt;
    if (next_value == 33) throw std::runtime_error("broken line");
    return next_value++;
  }
};

TEST_P(Workers, ReadStreamsInOrder) {
  const auto loader = index_loader(Counting{30}, {.batch_size = 4, .workers = GetParam()});
  for (int epoch = 0; epoch < 2; ++epoch) {
    EXPECT_EQ(joined(loop_over(loader)), counting(30));
  }
  for (const IndexBatch& batch : loader) {
    if (batch[0] == 8) break;
  }
  EXPECT_EQ(joined(loop_over(loader)), counting(30));
}

TEST_P(Workers, PassOnErrorsOfStreams) {
  const auto loader = index_loader(Counting{40}, {.batch_size = 4, .workers = GetParam()});
  IndexBatches seen;
  const std::string message = error_of([&] {
    for (const IndexBatch& batch : loader) {
      EXPECT_FALSE(loader.is_last_batch());
      seen.push_back(batch);
    }
  });
  EXPECT_TRUE(contains(message, "sample 33: broken line"));
  EXPECT_EQ(joined(seen), counting(32));
}

}  // namespace
