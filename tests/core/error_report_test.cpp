#include "accelerant/core/error.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <exception>
#include <stdexcept>

#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using accelerant::ErrorReport;
using accelerant::read_error_report;
using accelerant::write_error_report;

TEST(ErrorReport, ReadsWhatItWrites) {
  const TempFolder folder;
  const std::string path = folder.path("error.json");
  EXPECT_TRUE(write_error_report(
      path, {.message = "a \"bad\"\nthing", .rank = 3, .step = 812, .time = 1700000000.25}));
  const auto report = read_error_report(path);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->message, "a \"bad\"\nthing");
  EXPECT_EQ(report->rank, 3);
  EXPECT_EQ(report->step, 812);
  EXPECT_EQ(report->time, 1700000000.25);
  // A string, which torchelastic converts to an int.
  EXPECT_TRUE(contains(TempFolder::content_of(path), R"("timestamp":"1700000000")"));
}

TEST(ErrorReport, RankAndStepMayBeUnknownAndTheTimeIsNow) {
  const TempFolder folder;
  const std::string path = folder.path("error.json");
  const auto before = static_cast<double>(std::time(nullptr));
  EXPECT_TRUE(write_error_report(path, {.message = "bad"}));
  const auto report = read_error_report(path);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->rank, -1);
  EXPECT_FALSE(report->step);
  EXPECT_GE(report->time, before);
}

TEST(ErrorReport, OnlyTheFirstOfAProcessCounts) {
  const TempFolder folder;
  const std::string path = folder.path("error.json");
  EXPECT_TRUE(write_error_report(path, {.message = "cause"}));
  EXPECT_FALSE(write_error_report(path, {.message = "consequence"}));
  EXPECT_EQ(read_error_report(path)->message, "cause");
}

TEST(ErrorReport, ReplacesTheReportOfAnotherProcess) {
  const TempFolder folder;
  const std::string path = folder.write("error.json", R"({"message": "of yesterday"})");
  EXPECT_EQ(read_error_report(path)->message, "of yesterday");
  EXPECT_TRUE(write_error_report(path, {.message = "of today"}));
  EXPECT_EQ(read_error_report(path)->message, "of today");
}

TEST(ErrorReport, LeavesNothingWhereItCannotWrite) {
  const TempFolder folder;
  EXPECT_FALSE(write_error_report(folder.path("missing/error.json"), {.message = "bad"}));
  EXPECT_FALSE(read_error_report(folder.path("missing/error.json")));
  EXPECT_FALSE(write_error_report("", {.message = "bad"}));
}

TEST(ErrorReport, TakesAnyBytes) {
  const TempFolder folder;
  const std::string path = folder.path("error.json");
  EXPECT_TRUE(write_error_report(path, {.message = "caf\xe9"}));
  EXPECT_TRUE(contains(read_error_report(path)->message, "caf"));
}

TEST(ErrorReport, ReadsPythons) {
  const TempFolder folder;
  const std::string path = folder.write("error.json", R"({"message": {"message": "ValueError: x",
      "extraInfo": {"py_callstack": "Traceback", "timestamp": "1700000000"}, "errorCode": 1}})");
  const auto report = read_error_report(path);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->message, "ValueError: x");
  EXPECT_EQ(report->time, 1700000000);
}

TEST(ErrorReport, RefusesWhatIsNone) {
  const TempFolder folder;
  for (const char* text : {"", "{", "[]", "{}", "3", R"({"message": 3})", R"({"message": {}})",
                           R"({"message": {"message": 3}})"}) {
    EXPECT_FALSE(read_error_report(folder.write("error.json", text))) << text;
  }
  for (const char* extra : {"3", "[]", R"({"timestamp": "soon", "rank": "x", "step": 1.5})"}) {
    const auto report = read_error_report(folder.write(
        "error.json", R"({"message": {"message": "m", "extraInfo": )" + std::string(extra) + "}}"));
    ASSERT_TRUE(report) << extra;
    EXPECT_EQ(report->time, 0) << extra;
    EXPECT_EQ(report->rank, -1) << extra;
  }
}

TEST(ErrorReport, IsWrittenByATerminateHandler) {
  const TempFolder folder;
  static std::string path;
  path = folder.path("error.json");
  const auto fail = [] {
    std::set_terminate([] {
      write_error_report(path, {.message = "terminated", .rank = 1});
      std::_Exit(7);
    });
    std::terminate();
  };
  EXPECT_EXIT(fail(), testing::ExitedWithCode(7), "");
  const auto report = read_error_report(path);
  ASSERT_TRUE(report);
  EXPECT_EQ(report->message, "terminated");
}

}  // namespace
