#include "accelerant/track/progress_bar.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/core/error.h"

namespace accelerant {
namespace {

ProgressState half_way() {
  return {.description = "train",
          .unit = "img",
          .done = 500,
          .total = 1000,
          .elapsed = 10,
          .rate = 50,
          .values = {{"loss", "0.25"}, {"scale", "65536"}}};
}

TEST(TerminalLine, ShowsEverythingWhereThereIsRoom) {
  EXPECT_EQ(
      render_terminal_line(half_way(), 85),
      "train  50% [==========>         ] 500/1000 50.0 img/s ETA 00:10 loss 0.25 scale 65536");
}

TEST(TerminalLine, TheBarShrinksThenGoesThenTheValuesThenTheRest) {
  const ProgressState state = half_way();
  EXPECT_EQ(render_terminal_line(state, 71),
            "train  50% [===>  ] 500/1000 50.0 img/s ETA 00:10 loss 0.25 scale 65536");
  EXPECT_EQ(render_terminal_line(state, 70),
            "train  50% 500/1000 50.0 img/s ETA 00:10 loss 0.25 scale 65536");
  EXPECT_EQ(render_terminal_line(state, 60), "train  50% 500/1000 50.0 img/s ETA 00:10 loss 0.25");
  EXPECT_EQ(render_terminal_line(state, 30), "train  50% 500/1000 50.0 img/s");
  EXPECT_EQ(render_terminal_line(state, 29), "train  50% 500/1000");
  EXPECT_EQ(render_terminal_line(state, 10), "train  50%");
  EXPECT_EQ(render_terminal_line(state, 3), "tra");
  EXPECT_EQ(render_terminal_line(state, 0), "");
}

TEST(TerminalLine, NeverPassesTheWidth) {
  for (const int64_t done : {0, 1, 500, 999, 1000, 5000}) {
    ProgressState state = half_way();
    state.done = done;
    for (std::size_t width = 0; width < 200; ++width) {
      EXPECT_LE(render_terminal_line(state, width).size(), width) << done << " of 1000";
    }
  }
}

TEST(TerminalLine, CutsBetweenCodePoints) {
  ProgressState state = half_way();
  state.description = "Fortschritt für später";
  EXPECT_EQ(render_terminal_line(state, 14), "Fortschritt fü");
}

TEST(TerminalLine, KeepsToOneLineWhateverTheTextsHold) {
  ProgressState state = half_way();
  state.description = "two\nlines";
  state.values = {{"a\tb", "\x1b[31mred"}};
  const std::string line = render_terminal_line(state, 200);
  EXPECT_EQ(line.find_first_of("\n\t\x1b"), std::string::npos);
  EXPECT_EQ(render_plain_line(state).find_first_of("\n\t\x1b"), std::string::npos);
}

TEST(TerminalLine, FullOnlyWhenAllIsDone) {
  ProgressState state = half_way();
  state.done = 999;
  EXPECT_NE(render_terminal_line(state, 80).find(" 99% ["), std::string::npos);
  state.done = 1000;
  EXPECT_NE(render_terminal_line(state, 86).find("100% [====================] 1000/1000"),
            std::string::npos);
  state.done = 1200;  // more than was announced
  EXPECT_NE(render_terminal_line(state, 84).find("100% ["), std::string::npos);
}

TEST(TerminalLine, WithoutATotalCountsOnly) {
  ProgressState state = half_way();
  state.total = 0;
  EXPECT_EQ(render_terminal_line(state, 80),
            "train 500 img 50.0 img/s in 00:10 loss 0.25 scale 65536");
}

TEST(PlainLine, SaysEverything) {
  ProgressState state = half_way();
  EXPECT_EQ(
      render_plain_line(state),
      "train: 50% 500/1000 img, 50.0 img/s, elapsed 00:10, ETA 00:10, loss 0.25, scale 65536");
  state.finished = true;
  state.unit = "";
  state.values.clear();
  EXPECT_EQ(render_plain_line(state), "train: 50% 500/1000, 50.0/s, elapsed 00:10");
}

TEST(PlainLine, SlowWorkIsShownInSecondsPerItem) {
  ProgressState state = half_way();
  state.rate = 0.1;
  EXPECT_NE(render_plain_line(state).find("10.00 s/img"), std::string::npos);
  EXPECT_NE(render_plain_line(state).find("ETA 1:23:20"), std::string::npos);
}

TEST(Remaining, FollowsTheRate) {
  ProgressState state{.done = 25, .total = 100, .rate = 5};
  EXPECT_DOUBLE_EQ(estimate_remaining(state), 15);
  state.done = 120;
  EXPECT_DOUBLE_EQ(estimate_remaining(state), 0);
}

TEST(Remaining, IsUnknownWithoutATotalOrARate) {
  EXPECT_LT(estimate_remaining({.done = 25, .total = 0, .rate = 5}), 0);
  EXPECT_LT(estimate_remaining({.done = 0, .total = 10, .rate = 0}), 0);
  EXPECT_NE(render_plain_line({.done = 0, .total = 10}).find("? it/s, elapsed 00:00, ETA ?"),
            std::string::npos);
}

TEST(Remaining, SurvivesAbsurdRates) {
  ProgressState state{.done = 0, .total = std::numeric_limits<int64_t>::max(), .rate = 1e-300};
  EXPECT_NE(render_plain_line(state).find("ETA 277777:46:40"), std::string::npos);
}

TEST(RateMeter, StartsAsThePlainAverage) {
  RateMeter meter;
  EXPECT_EQ(meter.rate(), 0);
  meter.add(10, 0);
  EXPECT_EQ(meter.rate(), 0);
  meter.add(10, 2);
  EXPECT_NEAR(meter.rate(), 10 * (1 + std::exp(-0.2)) / 2, 1e-9);
}

TEST(RateMeter, IsExactForSteadyWorkAndForgetsOldWork) {
  RateMeter meter(10.0);
  for (int i = 0; i < 1000; ++i) meter.add(5, 0.1);
  EXPECT_NEAR(meter.rate(), 50, 1e-9);
  for (int i = 0; i < 1000; ++i) meter.add(1, 0.1);  // ten times the meter's memory
  EXPECT_NEAR(meter.rate(), 10, 0.01);
}

TEST(RateMeter, PassesOverABrokenClock) {
  RateMeter meter;
  meter.add(5, 1);
  meter.add(5, -1);
  EXPECT_DOUBLE_EQ(meter.rate(), 5);
}

// Collects what a bar writes in a temporary file.
class ProgressBarOutput : public testing::Test {
 protected:
  ProgressBarOutput() : stream_(std::tmpfile(), &std::fclose) {}

  void SetUp() override { ASSERT_TRUE(stream_); }

  std::string written() const {
    std::rewind(stream_.get());
    std::string text;
    for (int c = std::fgetc(stream_.get()); c != EOF; c = std::fgetc(stream_.get())) {
      text += static_cast<char>(c);
    }
    return text;
  }

  std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream_;
};

TEST_F(ProgressBarOutput, AFileGetsPlainLinesAndALastOne) {
  {
    ProgressBar bar({.total = 3, .stream = stream_.get(), .plain_interval = 0});
    for (int i = 0; i < 3; ++i) {
      bar.set("loss", 0.12345678);
      bar.advance();
    }
  }
  const std::string text = written();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
  EXPECT_EQ(text.find_first_of("\r\x1b"), std::string::npos);
  EXPECT_EQ(text.rfind("33% 1/3 it", 0), 0U) << text;
  EXPECT_NE(text.find("100% 3/3 it"), std::string::npos);
  EXPECT_NE(text.find("loss 0.1235\n"), std::string::npos);
}

TEST_F(ProgressBarOutput, BetweenIntervalsNothingIsWritten) {
  ProgressBar bar({.total = 1001, .stream = stream_.get(), .plain_interval = 3600});
  for (int i = 0; i < 999; ++i) bar.advance();
  EXPECT_FALSE(bar.due());
  bar.advance();
  bar.advance();
  EXPECT_EQ(written(), "");
}

TEST_F(ProgressBarOutput, TheLastLineShowsTheLastValues) {
  {
    // The run is far shorter than an interval.
    ProgressBar bar({.total = 10, .stream = stream_.get(), .plain_interval = 3600});
    std::vector<int> asked;
    for (const int i : {0, 1, 2, 3}) {
      if (bar.due()) {
        bar.set("loss", i);
        asked.push_back(i);
      }
      bar.advance(i < 3 ? 3 : 1);  // the last batch is smaller
    }
    EXPECT_EQ(asked, (std::vector<int>{0, 3}));
  }
  EXPECT_NE(written().find("100% 10/10 it"), std::string::npos) << written();
  EXPECT_NE(written().find("loss 3\n"), std::string::npos) << written();
}

TEST_F(ProgressBarOutput, ABarGoesOnWhereAnEarlierRunStopped) {
  ProgressBar bar({.total = 32, .initial = 24, .stream = stream_.get(), .plain_interval = 0});
  EXPECT_EQ(bar.state().done, 24);
  for (int i = 0; i < 8; ++i) bar.advance();
  const ProgressState state = bar.state();
  EXPECT_EQ(state.done, 32);
  bar.finish();
  // Work done before counts neither for the rate nor for the final average.
  EXPECT_NEAR(bar.state().rate * bar.state().elapsed, 8, 1e-6);
  const std::string text = written();
  EXPECT_EQ(text.rfind("78% 25/32 it", 0), 0U) << text;
  EXPECT_NE(text.find("100% 32/32 it"), std::string::npos) << text;
}

struct MadeUpLoader {
  std::optional<int64_t> whole;
  std::optional<int64_t> left;
  std::optional<int64_t> length() const { return whole; }
  std::optional<int64_t> batches_left() const { return left; }
};

TEST_F(ProgressBarOutput, ABarOverALoaderStartsWhereItsNextLoopDoes) {
  const ProgressBar resumed(MadeUpLoader{32, 8}, {.stream = stream_.get()});
  EXPECT_EQ(resumed.state().total, 32);
  EXPECT_EQ(resumed.state().done, 24);
  const ProgressBar fresh(MadeUpLoader{32, 32}, {.stream = stream_.get()});
  EXPECT_EQ(fresh.state().done, 0);
  const ProgressBar stream(MadeUpLoader{}, {.stream = stream_.get()});  // of unknown length
  EXPECT_EQ(stream.state().total, 0);
  EXPECT_EQ(stream.state().done, 0);
}

TEST_F(ProgressBarOutput, ATerminalLineIsRedrawnAndEnded) {
  {
    ProgressBar bar({.total = 2,
                     .stream = stream_.get(),
                     .refresh_interval = 0,
                     .terminal = ProgressBarOptions::Terminal::yes});
    EXPECT_TRUE(bar.due());
    bar.advance();
    bar.print("hello");
    bar.advance();
  }
  const std::string text = written();
  EXPECT_EQ(text.front(), '\r');
  EXPECT_NE(text.find("\r\x1b[Khello\n\r"), std::string::npos);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
  EXPECT_EQ(text.back(), '\n');
}

TEST_F(ProgressBarOutput, FinishWorksOnce) {
  ProgressBar bar({.stream = stream_.get()});
  bar.advance(7);
  bar.finish();
  bar.finish();
  bar.advance(7);
  const std::string text = written();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_EQ(text.rfind("7 it, ", 0), 0U) << text;
  EXPECT_EQ(bar.state().done, 7);
}

TEST_F(ProgressBarOutput, ValuesKeepTheirOrderAndReadableForm) {
  ProgressBar bar({.stream = stream_.get()});
  bar.set("scale", 65536);
  bar.set("loss", 1.0 / 3);
  bar.set("big", 123456.7);
  bar.set("nan", std::numeric_limits<double>::quiet_NaN());
  bar.set("phase", "warm-up");
  bar.set("scale", 131072);
  const std::vector<std::pair<std::string, std::string>> expected = {{"scale", "131072"},
                                                                     {"loss", "0.3333"},
                                                                     {"big", "123457"},
                                                                     {"nan", "nan"},
                                                                     {"phase", "warm-up"}};
  EXPECT_EQ(bar.state().values, expected);
}

TEST(ProgressBarOptions, BadValuesAreErrors) {
  EXPECT_THROW(ProgressBar({.total = -1}), Error);
  EXPECT_THROW(ProgressBar({.total = 5, .initial = 6}), Error);
  EXPECT_THROW(ProgressBar({.initial = -1}), Error);
  EXPECT_THROW(ProgressBar({.stream = nullptr}), Error);
  EXPECT_THROW(ProgressBar({.refresh_interval = -0.1}), Error);
  EXPECT_THROW(ProgressBar({.plain_interval = std::numeric_limits<double>::quiet_NaN()}), Error);
}

}  // namespace
}  // namespace accelerant
