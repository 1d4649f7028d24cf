#include "accelerant/core/log.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/log_level.h"

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

// Logs in a process of its own, because the rank is read only once.
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
  // Outside a job step, Slurm's variables do not count: there is one process.
  expect_log_of("SLURM_PROCID", "1", "^.accelerant. warning: all\n.accelerant. warning: main\n$");
}

// Sets the level and logs in a process of its own, because the level is read only once.
void expect_levels(const char* level, const char* rank, const char* text) {
  EXPECT_EXIT(
      {
        setenv("ACCELERANT_LOG_LEVEL", level, 1);
        if (rank != nullptr) setenv("RANK", rank, 1);
        accelerant::check_log_level();
        accelerant::check_log_level();
        log(LogLevel::info, "info");
        log(LogLevel::warning, "warning");
        log(LogLevel::error, "error");
        std::exit(0);
      },
      testing::ExitedWithCode(0), text);
}

TEST(LogDeathTest, TakesTheLevelFromTheEnvironment) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  expect_levels("INFO", nullptr, "^.accelerant. info: info\n.*warning\n.*error\n$");
  expect_levels("error", nullptr, "^.accelerant. error: error\n$");
  expect_levels("off", nullptr, "^$");
  expect_levels("", nullptr, "^.accelerant. warning: warning\n.*error\n$");
}

TEST(LogDeathTest, ReportsAnUnknownLevelOnceAndUsesTheDefault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  expect_levels("loud", nullptr,
                "^.accelerant. warning: ACCELERANT_LOG_LEVEL: expected debug, info, warning, error "
                "or off, got 'loud'; using warning\n.accelerant. warning: warning\n.*error\n$");
  expect_levels("loud", "0", "^.rank 0. accelerant warning: ACCELERANT_LOG_LEVEL");
  expect_levels("loud", "1", "^.rank 1. accelerant warning: warning\n");  // rank 0 has said it
}

TEST(Log, TheLevelDoesNotMatterToAHandler) {
  auto before = set_log_handler([](LogLevel, std::string_view) {});
  testing::internal::CaptureStderr();
  accelerant::check_log_level();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  set_log_handler(before);
}

}  // namespace
