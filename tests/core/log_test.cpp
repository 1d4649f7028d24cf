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

}  // namespace
