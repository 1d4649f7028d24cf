#include "accelerant/track/timeline.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "support/temp_folder.h"

namespace accelerant {
namespace {

using nlohmann::json;
using Clock = Timeline::Clock;
using namespace std::chrono_literals;

// The events of one kind ("X", "M", "i", "C"), in the order of the file.
std::vector<json> events_of(const json& trace, const std::string& kind) {
  std::vector<json> events;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == kind) events.push_back(event);
  }
  return events;
}

std::vector<json> spans_of(const Timeline& timeline) {
  return events_of(json::parse(timeline.to_json()), "X");
}

std::vector<std::string> names_of(const std::vector<json>& events) {
  std::vector<std::string> names;
  for (const json& event : events) names.push_back(event.at("name"));
  return names;
}

double end_of(const json& span) {
  return span.at("ts").get<double>() + span.at("dur").get<double>();
}

// Waits until the clock has moved on, so that no two moments are the same.
void pass_time(Clock::duration duration = 10us) {
  for (const auto until = Clock::now() + duration; Clock::now() < until;) {
  }
}

TEST(Timeline, IsOffAtFirst) {
  Timeline timeline;
  EXPECT_FALSE(timeline.is_on());
  {
    const auto span = timeline.span("nothing");
    const auto phase = timeline.span(Phase::forward);
  }
  timeline.instant("nothing");
  timeline.counter("nothing", 1);
  timeline.add(Phase::step, Clock::now(), Clock::now());
  EXPECT_EQ(timeline.events(), 0);
  EXPECT_TRUE(spans_of(timeline).empty());
}

TEST(Timeline, SpansNest) {
  Timeline timeline;
  timeline.start();
  {
    const auto outer = timeline.span("outer", "mine");
    {
      const auto inner = timeline.span("inner");
      pass_time();
    }
    const auto second = timeline.span(std::string("sec") + "ond");
    pass_time();
  }
  const auto spans = spans_of(timeline);
  ASSERT_EQ(names_of(spans), (std::vector<std::string>{"outer", "inner", "second"}));
  const json &outer = spans[0], &inner = spans[1], &second = spans[2];
  EXPECT_EQ(outer.at("cat"), "mine");
  EXPECT_EQ(inner.at("cat"), "user");
  EXPECT_LE(outer.at("ts"), inner.at("ts"));
  EXPECT_LE(end_of(inner), second.at("ts").get<double>());
  EXPECT_LE(end_of(second), end_of(outer) + 1e-3);
  EXPECT_GE(inner.at("dur").get<double>(), 10.0);
}

TEST(Timeline, SpansThatBeginTogetherAreWrittenFromOutsideToInside) {
  Timeline timeline;
  timeline.start();
  const auto from = Clock::now();
  timeline.add("innermost", "c", from, from + 1ms);
  timeline.add("inner", "c", from, from + 1ms);
  timeline.add("outer", "c", from, from + 2ms);
  EXPECT_EQ(names_of(spans_of(timeline)),
            (std::vector<std::string>{"outer", "inner", "innermost"}));
}

TEST(Timeline, ASpanCanBeEndedEarly) {
  Timeline timeline;
  timeline.start();
  auto first = timeline.span("first");
  first.end();
  first.end();
  EXPECT_EQ(timeline.events(), 1);
}

TEST(Timeline, AnExceptionEndsSpans) {
  Timeline timeline;
  timeline.start();
  try {
    const auto phase = timeline.span(Phase::backward);
    throw 1;
  } catch (int) {
  }
  const auto phase = timeline.span(Phase::step);  // not inside the one that has ended
  EXPECT_EQ(names_of(spans_of(timeline)), (std::vector<std::string>{"backward"}));
}

TEST(Timeline, KeepsMomentsAndNumbers) {
  Timeline timeline;
  timeline.start();
  timeline.instant("now");
  timeline.counter("loss", 0.25);
  timeline.counter("loss", std::numeric_limits<double>::quiet_NaN());  // JSON has no NaN
  timeline.counter("loss", std::numeric_limits<double>::infinity());
  const json trace = json::parse(timeline.to_json());
  const auto moments = events_of(trace, "i");
  ASSERT_EQ(moments.size(), 1);
  EXPECT_EQ(moments[0].at("s"), "t");
  const auto numbers = events_of(trace, "C");
  ASSERT_EQ(numbers.size(), 1);
  EXPECT_EQ(numbers[0].at("args").at("value"), 0.25);
}

TEST(Timeline, NamesMayHoldAnything) {
  Timeline timeline({.rank = 3, .process_name = "a \"quoted\" name\n"});
  timeline.start();
  {
    std::string name = "\x01 \xff \\ \" ü";
    const auto span = timeline.span(name);
    name = "overwritten";
  }
  const json trace = json::parse(timeline.to_json());
  EXPECT_EQ(events_of(trace, "X")[0].at("name"), "\x01 \xef\xbf\xbd \\ \" ü");
  EXPECT_EQ(events_of(trace, "M")[0].at("args").at("name"), "a \"quoted\" name\n");
  for (const json& event : trace.at("traceEvents")) EXPECT_EQ(event.at("pid"), 3);
}

TEST(Timeline, TellsTheTimeOfDay) {
  Timeline timeline;
  const auto before = std::chrono::system_clock::now().time_since_epoch();
  timeline.start();
  { const auto span = timeline.span("a"); }
  pass_time(1ms);
  const json trace = json::parse(timeline.to_json());
  const auto after = std::chrono::system_clock::now().time_since_epoch();
  const int64_t base = trace.at("baseTimeNanoseconds");
  EXPECT_GE(base, std::chrono::nanoseconds(before - 1ms).count());
  EXPECT_LE(base, std::chrono::nanoseconds(after).count());
  const double start = events_of(trace, "X")[0].at("ts");
  EXPECT_GE(start, 0);
}

TEST(Timeline, StartsAnew) {
  Timeline timeline;
  timeline.start();
  { const auto span = timeline.span(Phase::forward); }
  auto under_way = timeline.span("under way");
  timeline.stop();
  { const auto span = timeline.span("while off"); }
  EXPECT_EQ(timeline.events(), 1);
  timeline.start();
  under_way.end();  // belongs to the earlier recording
  { const auto span = timeline.span("new"); }
  EXPECT_EQ(names_of(spans_of(timeline)), (std::vector<std::string>{"new"}));
  EXPECT_EQ(timeline.phase_times().count(Phase::forward), 0);
}

TEST(Timeline, ASpanUnderWayAtTheStopStillEndsInIt) {
  Timeline timeline;
  timeline.start();
  {
    const auto span = timeline.span("last");
    timeline.stop();
  }
  EXPECT_EQ(names_of(spans_of(timeline)), (std::vector<std::string>{"last"}));
}

TEST(Timeline, HasABound) {
  for (const std::size_t bound : {0UL, 1UL, 10UL, 1024UL, 1500UL}) {
    Timeline timeline({.max_events = bound});
    timeline.start();
    for (int i = 0; i < 2000; ++i) const auto span = timeline.span(Phase::data);
    EXPECT_EQ(timeline.events(), static_cast<int64_t>(bound));
    EXPECT_EQ(timeline.dropped(), 2000 - static_cast<int64_t>(bound));
    EXPECT_EQ(spans_of(timeline).size(), bound);
    EXPECT_EQ(timeline.phase_times().count(Phase::data), 2000);
    EXPECT_EQ(json::parse(timeline.to_json()).at("accelerant").at("dropped_events"),
              2000 - static_cast<int64_t>(bound));
    timeline.start(5);
    for (int i = 0; i < 7; ++i) timeline.instant("again");
    EXPECT_EQ(timeline.events(), 5);
    EXPECT_EQ(timeline.dropped(), 2);
  }
}

TEST(Timeline, EveryThreadHasItsTrack) {
  Timeline timeline({.max_events = 10'000});
  timeline.start();
  timeline.name_thread("main");
  { const auto span = timeline.span("mine"); }
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&timeline, number] {
      timeline.name_thread("worker " + std::to_string(number));
      for (int i = 0; i < 500; ++i) {
        const auto outer = timeline.span("outer");
        const auto inner = timeline.span("inner " + std::to_string(number));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  const json trace = json::parse(timeline.to_json());
  std::map<int64_t, std::string> names;
  for (const json& event : events_of(trace, "M")) {
    if (event.at("name") == "thread_name") names[event.at("tid")] = event.at("args").at("name");
  }
  EXPECT_EQ(names.size(), 5);
  std::map<std::string, int> counts;
  for (const json& span : events_of(trace, "X")) {
    const std::string thread = names.at(span.at("tid"));
    ++counts[thread];
    if (span.at("name") == "mine") {
      EXPECT_EQ(thread, "main");
    }
    if (span.at("name").get<std::string>().starts_with("inner")) {
      EXPECT_EQ(thread.back(), span.at("name").get<std::string>().back());
    }
  }
  EXPECT_EQ(counts, (std::map<std::string, int>{{"main", 1},
                                                {"worker 0", 1000},
                                                {"worker 1", 1000},
                                                {"worker 2", 1000},
                                                {"worker 3", 1000}}));
}

TEST(Timeline, KeepsTheNameOfAThreadThatLives) {
  Timeline timeline;
  timeline.name_thread("me");  // while it is off
  timeline.start();
  timeline.start();
  timeline.instant("here");
  const auto names = events_of(json::parse(timeline.to_json()), "M");
  ASSERT_EQ(names.size(), 4);
  EXPECT_EQ(names[2].at("args").at("name"), "me");
}

// Everything at once, for the thread sanitizer.
TEST(Timeline, ThreadsWriteWhileOthersReadStartAndStop) {
  Timeline timeline({.max_events = 5000});
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number) {
    threads.emplace_back([&] {
      while (!is_over) {
        const auto phase = timeline.span(Phase::forward);
        const auto named = timeline.span(std::string("made here"));
        timeline.counter("number", 1);
        // Also a thread that ends at once.
        std::thread([&] { const auto span = timeline.span("short"); }).join();
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    timeline.start(i % 2 == 0 ? 5000 : 3);
    pass_time(1ms);
    const json trace = json::parse(timeline.to_json());
    EXPECT_LE(timeline.events(), 5000);
    timeline.phase_times();
    if (i % 3 == 0) timeline.stop();
    const json stopped = json::parse(timeline.to_json());
    for (const json& span : events_of(stopped, "X")) EXPECT_GE(span.at("dur").get<double>(), 0);
  }
  is_over = true;
  for (auto& thread : threads) thread.join();
}

TEST(Timeline, AThreadMayEndAfterItsTimeline) {
  auto timeline = std::make_unique<Timeline>();
  timeline->start();
  std::atomic<int> stage = 0;
  std::thread thread([&] {
    timeline->instant("here");
    stage = 1;
    while (stage != 2) std::this_thread::yield();
  });
  while (stage != 1) std::this_thread::yield();
  EXPECT_EQ(timeline->events(), 1);
  timeline.reset();
  stage = 2;
  thread.join();
}

TEST(Timeline, SeveralDoNotDisturbEachOther) {
  Timeline one, other;
  one.start();
  for (int i = 0; i < 3; ++i) {
    const auto here = one.span("one");
    const auto there = other.span("other");
  }
  other.start();
  {
    const auto outer = one.span(Phase::forward);
    const auto inner = other.span(Phase::backward);
  }
  EXPECT_EQ(one.events(), 4);
  EXPECT_EQ(other.events(), 1);
  EXPECT_EQ(one.phase_times().count(Phase::forward), 1);
  EXPECT_EQ(one.phase_times().count(Phase::backward), 0);
}

TEST(Timeline, WritesAWholeFileOrNone) {
  const TempFolder folder;
  Timeline timeline;
  timeline.start();
  { const auto span = timeline.span("a"); }
  timeline.write(folder.path("trace.json"));
  EXPECT_EQ(events_of(json::parse(TempFolder::content_of(folder.path("trace.json"))), "X").size(),
            1);
  EXPECT_THROW(timeline.write(folder.path("not there/trace.json")), std::exception);
  run_in_shell("test \"$(ls '" + folder.path() + "')\" = trace.json");
}

TEST(PhaseTimes, CountEachMomentOnce) {
  Timeline timeline;
  timeline.start();
  {
    const auto backward = timeline.span(Phase::backward);
    pass_time(2ms);
    const auto mine = timeline.span("not a phase");
    {
      const auto exchange = timeline.span(Phase::exchange, "gather");
      pass_time(3ms);
    }
    const auto from = Clock::now();
    pass_time(1ms);
    timeline.add(Phase::reduction, from, Clock::now());
  }
  pass_time(1ms);
  timeline.stop();
  pass_time(1ms);
  const PhaseTimes times = timeline.phase_times();
  const auto spans = spans_of(timeline);
  std::map<std::string, double> lengths;
  for (const json& span : spans) lengths[span.at("name")] = span.at("dur").get<double>() * 1e-6;
  EXPECT_NEAR(times.of(Phase::exchange), lengths["gather"], 1e-8);
  EXPECT_NEAR(times.of(Phase::reduction), lengths["reduction"], 1e-8);
  EXPECT_NEAR(times.of(Phase::backward),
              lengths["backward"] - lengths["gather"] - lengths["reduction"], 1e-8);
  EXPECT_EQ(times.count(Phase::backward), 1);
  EXPECT_GE(times.total, lengths["backward"] + 1e-3);
  EXPECT_EQ(times.total, timeline.phase_times().total);  // the clock has stopped
}

TEST(PhaseTimes, ExchangesForDataAndSavesCountForThose) {
  Timeline timeline;
  timeline.start();
  for (const Phase phase : {Phase::data, Phase::save, Phase::forward}) {
    const auto outer = timeline.span(phase);
    const auto exchange = timeline.span(Phase::exchange);
  }
  EXPECT_EQ(timeline.phase_times().count(Phase::exchange), 1);
  EXPECT_EQ(timeline.events(), 6);
}

// A phase that takes a millisecond.
void pass_phase(Timeline& timeline, Phase phase) {
  const auto span = timeline.span(phase);
  pass_time(1ms);
}

TEST(PhaseTimes, ALoopOfEvaluationCountsAsAWhole) {
  Timeline timeline;
  timeline.start();
  for (int batch = 0; batch < 3; ++batch) {
    pass_phase(timeline, Phase::data);
    pass_phase(timeline, Phase::evaluation);
    pass_time(1ms);  // metrics
    pass_phase(timeline, Phase::exchange);
  }
  timeline.stop();
  const PhaseTimes times = timeline.phase_times();
  EXPECT_GE(times.of(Phase::evaluation), 9e-3);  // from the first forward to the last
  // What comes before the first forward and after the last may belong to the training.
  EXPECT_LT(times.of(Phase::data), 0.3 * times.of(Phase::evaluation));
  EXPECT_LT(times.of(Phase::exchange), 0.3 * times.of(Phase::evaluation));
  EXPECT_EQ(times.count(Phase::data), 3);
  double sum = 0;
  for (const double seconds : times.seconds) sum += seconds;
  EXPECT_LE(sum, times.total);
}

TEST(PhaseTimes, AForwardWithoutGradientsInATrainingStepCountsAlone) {
  Timeline timeline;
  timeline.start();
  for (int batch = 0; batch < 3; ++batch) {
    for (const Phase phase : {Phase::data, Phase::evaluation, Phase::forward, Phase::step}) {
      pass_phase(timeline, phase);
    }
  }
  timeline.stop();
  const PhaseTimes times = timeline.phase_times();
  EXPECT_GE(times.of(Phase::data), 3e-3);
  EXPECT_LT(times.of(Phase::evaluation), 0.5 * times.total);
}

TEST(PhaseTimes, AreThoseOfTheBusiestThread) {
  Timeline timeline;
  timeline.start();
  { const auto span = timeline.span(Phase::save); }
  std::thread([&] {
    const auto span = timeline.span(Phase::forward);
    pass_time(1ms);
  }).join();
  EXPECT_EQ(timeline.phase_times().count(Phase::forward), 1);
  EXPECT_EQ(timeline.phase_times().count(Phase::save), 0);
}

}  // namespace
}  // namespace accelerant
