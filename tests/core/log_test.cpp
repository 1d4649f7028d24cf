#include "accelerant/core/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

using accelerant::log;
using accelerant::LogLevel;
using accelerant::set_log_handler;

TEST(Log, GoesToTheHandler) {
  std::vector<std::string> seen;
  auto before = set_log_handler([&](LogLevel, std::string_view text) { seen.emplace_back(text); });
  log(LogLevel::debug, "one");
  log(LogLevel::error, "two");
  set_log_handler(before);
  EXPECT_EQ(seen, (std::vector<std::string>{"one", "two"}));
}

TEST(Log, DefaultWritesWarningsToStandardError) {
  testing::internal::CaptureStderr();
  log(LogLevel::info, "unimportant");
  log(LogLevel::warning, "important");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("warning: important"), std::string::npos) << text;
  EXPECT_EQ(text.find("unimportant"), std::string::npos) << text;
}

// In a process of its own: the rank is read once.
void expect_log_of(const char* variable, const char* rank, const char* text) {
  EXPECT_EXIT(
      {
        unsetenv("RANK");
        setenv(variable, rank, 1);
        log(LogLevel::warning, "all");
        accelerant::log_on_main(LogLevel::warning, "main");
        std::exit(0);
      },
      testing::ExitedWithCode(0), text);
}

TEST(LogDeathTest, NamesTheRankAndKnowsTheMainProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  expect_log_of("RANK", "0",
                "^.rank 0. accelerant warning: all\n.rank 0. accelerant warning: main\n$");
  expect_log_of("RANK", "3", "^.rank 3. accelerant warning: all\n$");
  expect_log_of("OMPI_COMM_WORLD_RANK", "2", "^.rank 2. accelerant warning: all\n$");
  // Not inside a step: one process.
  expect_log_of("SLURM_PROCID", "1", "^.accelerant. warning: all\n.accelerant. warning: main\n$");
}

}  // namespace
