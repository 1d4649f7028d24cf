// The threads of the loader, without torch, so that ThreadSanitizer sees everything.
#include <accelerant/data/detail/ordered_pipeline.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using accelerant::data::detail::OrderedPipeline;
using Pipeline = OrderedPipeline<int>;

// Jobs 0, 1, ..., count - 1; some take longer, so they end out of order.
Pipeline::Claim counting(int count) {
  return [count, next = 0]() mutable -> Pipeline::Job {
    if (next == count) return {};
    return [value = next++] {
      if (value % 5 == 0) std::this_thread::yield();
      return value;
    };
  };
}

std::vector<int> all_of(Pipeline& pipeline) {
  std::vector<int> items;
  while (auto item = pipeline.next()) items.push_back(*item);
  return items;
}

class WithWorkers : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, WithWorkers, testing::Values(0, 1, 2, 5));

TEST_P(WithWorkers, ItemsComeInOrder) {
  for (const int capacity : {1, 2, 16}) {
    Pipeline pipeline(counting(200), GetParam(), capacity);
    const std::vector<int> items = all_of(pipeline);
    ASSERT_EQ(items.size(), 200U);
    for (int i = 0; i < 200; ++i) EXPECT_EQ(items[static_cast<std::size_t>(i)], i);
    EXPECT_FALSE(pipeline.next());  // the end stays the end
  }
}

TEST_P(WithWorkers, NothingIsAlsoAnEnd) {
  Pipeline pipeline(counting(0), GetParam(), 2);
  EXPECT_FALSE(pipeline.next());
}

TEST_P(WithWorkers, ClaimsAreNeverMadeByTwoThreadsAtOnce) {
  int unguarded = 0;  // the sanitizer would report a data race here
  Pipeline pipeline(
      [&]() -> Pipeline::Job {
        if (unguarded == 500) return {};
        return [value = unguarded++] { return value; };
      },
      GetParam(), 8);
  EXPECT_EQ(all_of(pipeline).size(), 500U);
}

TEST_P(WithWorkers, NoMoreIsMadeAheadThanAllowed) {
  const int workers = GetParam();
  constexpr int kCapacity = 3;
  std::atomic<int> claimed = 0;
  int taken = 0;
  Pipeline pipeline(
      [&]() -> Pipeline::Job {
        if (claimed == 100) return {};
        return [value = claimed++] { return value; };
      },
      workers, kCapacity);
  while (auto item = pipeline.next()) {
    ++taken;
    std::this_thread::yield();
    EXPECT_LE(claimed - taken, kCapacity);
  }
  EXPECT_EQ(taken, 100);
}

TEST_P(WithWorkers, ExceptionsComeInTheirPlace) {
  Pipeline pipeline(
      [next = 0]() mutable -> Pipeline::Job {
        return [value = next++] {
          if (value == 5) throw std::runtime_error("five");
          return value;
        };
      },
      GetParam(), 4);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(pipeline.next(), i);
  try {
    pipeline.next();
    ADD_FAILURE() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(error.what(), std::string("five"));
  }
  EXPECT_EQ(pipeline.next(), 6);  // the others are not affected
}

TEST_P(WithWorkers, ExceptionsOfClaimsEndThePipeline) {
  Pipeline pipeline(
      [next = 0]() mutable -> Pipeline::Job {
        if (next == 3) throw std::runtime_error("three");
        return [value = next++] { return value; };
      },
      GetParam(), 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pipeline.next(), i);
  EXPECT_THROW(pipeline.next(), std::runtime_error);
}

TEST_P(WithWorkers, StopsInTheMiddle) {
  for (int stop_after = 0; stop_after < 30; ++stop_after) {
    const auto alive = std::make_shared<int>(0);
    {
      Pipeline pipeline(
          [alive, next = 0]() mutable -> Pipeline::Job {  // never ends by itself
            return [alive, value = next++] { return value; };
          },
          GetParam(), 4);
      for (int i = 0; i < stop_after; ++i) EXPECT_EQ(pipeline.next(), i);
    }
    EXPECT_EQ(alive.use_count(), 1);  // no jobs or threads are left
  }
}

TEST_P(WithWorkers, EveryThreadStartsWithTheHook) {
  std::atomic<int> started = 0;
  {
    Pipeline pipeline(counting(50), GetParam(), 4, [&] { ++started; });
    EXPECT_EQ(all_of(pipeline).size(), 50U);
  }
  EXPECT_EQ(started, GetParam());
}

TEST(OrderedPipeline, JobsReallyRunAtTheSameTime) {
  std::atomic<int> running = 0;
  Pipeline pipeline(
      [&, next = 0]() mutable -> Pipeline::Job {
        if (next++ == 2) return {};
        return [&] {  // each waits for the other
          ++running;
          while (running < 2) std::this_thread::yield();
          return 0;
        };
      },
      2, 2);
  EXPECT_EQ(all_of(pipeline).size(), 2U);
}

TEST(OrderedPipeline, ItemsNeedNotBeCopyable) {
  OrderedPipeline<std::unique_ptr<int>> pipeline(
      [next = 0]() mutable -> std::function<std::unique_ptr<int>()> {
        if (next == 3) return {};
        return [value = next++] { return std::make_unique<int>(value); };
      },
      2, 2);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(**pipeline.next(), i);
}

}  // namespace
