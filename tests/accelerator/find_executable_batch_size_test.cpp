// utilities_test.py compares the sizes that are tried with Accelerate's.
#include "accelerant/accelerator/utilities.h"

#include <accelerant/accelerator/utilities.h>
#include <accelerant/core/log.h>
#include <torch/torch.h>

#include <new>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/sanitized.h"

namespace {

using accelerant::find_executable_batch_size;

[[noreturn]] void run_out_of_memory() {
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate 2 GiB.");
  std::terminate();
}

class FindExecutableBatchSize : public testing::Test {
 protected:
  FindExecutableBatchSize()
      : before_(accelerant::set_log_handler(
            [this](accelerant::LogLevel level, std::string_view message) {
              EXPECT_EQ(level, accelerant::LogLevel::warning);
              messages.emplace_back(message);
            })) {}
  ~FindExecutableBatchSize() override { accelerant::set_log_handler(before_); }

  std::vector<std::string> messages;

 private:
  accelerant::LogHandler before_;
};

TEST_F(FindExecutableBatchSize, RetriesAndReturnsWhatTheFunctionReturns) {
  std::vector<int64_t> tried;
  const std::string result = find_executable_batch_size([&](int64_t batch_size) {
    tried.push_back(batch_size);
    if (batch_size > 100) run_out_of_memory();
    return std::to_string(batch_size);
  });
  EXPECT_EQ(result, "92");
  EXPECT_EQ(tried, (std::vector<int64_t>{128, 115, 103, 92}));
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_TRUE(contains(messages[0], "128"));
  EXPECT_TRUE(contains(messages[0], "trying 115"));
  EXPECT_TRUE(contains(messages[0], "Tried to allocate 2 GiB."));
}

TEST_F(FindExecutableBatchSize, AFunctionMayReturnNothing) {
  int calls = 0;
  find_executable_batch_size([&](int64_t) { ++calls; });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(messages.empty());
}

TEST_F(FindExecutableBatchSize, StopsAtTheMinimum) {
  std::vector<int64_t> tried;
  const std::string message = whole_error_of([&] {
    find_executable_batch_size(
        [&](int64_t batch_size) {
          tried.push_back(batch_size);
          run_out_of_memory();
        },
        {.starting_batch_size = 64, .minimum = 16, .reduce = [](int64_t size) {
           return size / 2;
         }});
  });
  EXPECT_EQ(tried, (std::vector<int64_t>{64, 32, 16}));
  EXPECT_TRUE(contains(message, "No executable batch size found"));
  EXPECT_TRUE(contains(message, "a batch of 16"));
  EXPECT_TRUE(contains(message, "Tried to allocate 2 GiB."));
}

TEST_F(FindExecutableBatchSize, RealAllocationsOfTheCpu) {
  if (is_sanitized) GTEST_SKIP() << "a sanitizer ends the program when memory runs out";
  // 2^52 bytes per row: more than there is, until no batch size is left.
  EXPECT_TRUE(contains(whole_error_of([] {
                         find_executable_batch_size(
                             [](int64_t batch_size) {
                               return torch::empty({batch_size, int64_t{1} << 52}, at::kByte);
                             },
                             {.starting_batch_size = 2});
                       }),
                       "DefaultCPUAllocator"));
  const auto bytes = find_executable_batch_size(
      [](int64_t batch_size) {
        if (batch_size > 10) throw std::bad_alloc();
        return batch_size;
      },
      {.starting_batch_size = 12});
  EXPECT_EQ(bytes, 10);
}

TEST_F(FindExecutableBatchSize, OtherErrorsPass) {
  int calls = 0;
  EXPECT_THROW(find_executable_batch_size([&](int64_t) {
                 ++calls;
                 throw std::runtime_error("out of memory. But of another kind");
               }),
               std::runtime_error);
  EXPECT_THROW(find_executable_batch_size([&](int64_t) {
                 ++calls;
                 torch::ones({2}).add(torch::ones({3}));
               }),
               c10::Error);
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(messages.empty());
}

TEST_F(FindExecutableBatchSize, WhatCountsAsOutOfMemory) {
  const auto counts = [](const std::string& message) {
    return accelerant::is_out_of_memory(c10::Error({__func__, __FILE__, __LINE__}, message));
  };
  EXPECT_TRUE(counts("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if ..."));
  EXPECT_TRUE(
      counts("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't "
             "allocate memory: you tried to allocate 9 bytes."));
  EXPECT_TRUE(counts("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."));
  EXPECT_FALSE(counts("mat1 and mat2 shapes cannot be multiplied"));
}

TEST_F(FindExecutableBatchSize, OptionsAreChecked) {
  const auto run = [](const accelerant::FindExecutableBatchSizeOptions& options) {
    return error_of(
        [&] { find_executable_batch_size([](int64_t) { run_out_of_memory(); }, options); });
  };
  EXPECT_TRUE(contains(run({.starting_batch_size = 0}), "starting_batch_size 0"));
  EXPECT_TRUE(contains(run({.starting_batch_size = 4, .minimum = 5}), "minimum 5"));
  EXPECT_TRUE(contains(run({.minimum = 0}), "minimum 0"));
  EXPECT_TRUE(contains(run({.reduce = [](int64_t size) { return size; }}), "not smaller"));
}

TEST(ClearDeviceCache, FreesCachedMemory) {
  accelerant::clear_device_cache();  // also without an accelerator, or before any use
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  torch::ones({1 << 26}, at::kCUDA).reset();
  auto* const allocator = c10::getDeviceAllocator(at::kCUDA);
  const auto reserved = [&] { return allocator->getDeviceStats(0).reserved_bytes[0].current; };
  const auto before = reserved();
  EXPECT_GE(before, 1 << 28);
  accelerant::clear_device_cache();
  EXPECT_LT(reserved(), before);
}

}  // namespace
