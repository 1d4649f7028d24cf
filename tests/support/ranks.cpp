#include "support/ranks.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace rank_test {
namespace {

constexpr const char* kVariable =
    "ACCELERANT_RANK_TEST";  // the test that this process is a rank of

std::string name_of_this_test() {
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  return std::string(test->test_suite_name()) + "." + test->name();
}

std::string this_program() {
  std::array<char, 4096> path = {};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size() - 1);
  return {path.data(), size > 0 ? static_cast<size_t>(size) : 0};
}

double timeout_scale() {
  const char* text = std::getenv("ACCELERANT_TEST_TIMEOUT_SCALE");
  const double scale = text == nullptr ? 1 : std::atof(text);
  return scale > 0 ? scale : 1;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

bool is_rank() { return std::getenv(kVariable) != nullptr; }

accelerant::launch::RunRanksResult run(const Options& options) {
  const std::string test = name_of_this_test();
  accelerant::launch::RunRanksOptions ranks = {
      .command = {this_program(), "--gtest_filter=" + test, "--gtest_color=no",
                  "--gtest_also_run_disabled_tests"},
      .num_processes = options.num_ranks,
      .timeout = std::chrono::duration<double>(options.timeout * timeout_scale()),
      .grace = std::chrono::duration<double>(options.grace),
      .environment = options.environment};
  ranks.environment[kVariable] = test;
  // Many tests run at once, and their small tensors gain nothing from more threads.
  if (std::getenv("OMP_NUM_THREADS") == nullptr) ranks.environment.emplace("OMP_NUM_THREADS", "1");
  // Variables of the outer test run that would overwrite its results or skip tests.
  for (const char* name : {"GTEST_OUTPUT", "XML_OUTPUT_FILE", "GTEST_TOTAL_SHARDS",
                           "GTEST_SHARD_INDEX", "GTEST_SHARD_STATUS_FILE", "GTEST_REPEAT"}) {
    if (std::getenv(name) != nullptr) unsetenv(name);
  }
  return accelerant::launch::run_ranks(ranks);
}

void run_and_expect_success(const Options& options) {
  const auto result = run(options);
  if (!result.succeeded()) {
    ADD_FAILURE() << result.report;
    return;
  }
  const std::string ran = "[ RUN      ] " + name_of_this_test();
  for (const auto& rank : result.ranks) {
    ASSERT_TRUE(holds(rank.out, ran)) << "rank " << rank.rank << " did not run it:\n" << rank.out;
  }
  const auto skipped = std::ranges::find_if(
      result.ranks, [](const auto& rank) { return holds(rank.out, "[  SKIPPED ]"); });
  if (skipped != result.ranks.end()) GTEST_SKIP() << skipped->out;
}

}  // namespace rank_test
