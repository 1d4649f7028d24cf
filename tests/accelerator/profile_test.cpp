// accelerator.profile(): which phases are recorded, when, and where they go.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <tuple>

#include "accelerator/helpers.h"
#include "support/expect_error.h"
#include "support/gathered_log.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Phase;
using accelerant::PhaseTimes;
using accelerant::ProfileAction;
using accelerant::ProfileOptions;
using accelerant::ProfileSchedule;
using accelerant::ProfileScope;
using nlohmann::json;

json trace_in(const std::string& path) { return json::parse(TempFolder::content_of(path)); }

std::vector<json> spans_in(const json& trace, const std::string& name) {
  std::vector<json> spans;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("name") == name) spans.push_back(event);
  }
  return spans;
}

std::size_t count_in(const json& trace, const std::string& name) {
  return spans_in(trace, name).size();
}

// In nanoseconds, so that sums are exact.
int64_t begin_of(const json& span) { return std::llround(span.at("ts").get<double>() * 1000); }
int64_t end_of(const json& span) {
  return begin_of(span) + std::llround(span.at("dur").get<double>() * 1000);
}

bool is_inside(const json& inner, const json& outer) {
  return inner.at("tid") == outer.at("tid") && begin_of(inner) >= begin_of(outer) &&
         end_of(inner) <= end_of(outer);
}

std::string thread_of(const json& trace, const json& span) {
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name" && event.at("tid") == span.at("tid")) {
      return event.at("args").at("name");
    }
  }
  return "";
}

// A small training; every call is an epoch of `batches` batches.
struct ProfiledTraining {
  explicit ProfiledTraining(accelerant::AcceleratorOptions options = on_cpu(), int64_t batches = 6)
      : accelerator(options) {
    std::tie(model, optimizer, loader, scheduler) =
        accelerator.prepare(net, sgd, counting_loader(batches, {.batch_size = 1}), schedule);
  }

  template <class AfterStep>
  void epoch(AfterStep&& after_step) {
    for (auto&& [data] : loader) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(data).mean());
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      after_step();
    }
  }
  void epoch() {
    epoch([] {});
  }

  Accelerator accelerator;
  Scale net;
  torch::optim::SGD sgd{net->parameters(), 0.1};
  accelerant::optim::LrScheduler schedule = accelerant::optim::constant(sgd);
  accelerant::Model<Scale> model;
  accelerant::Optimizer optimizer;
  accelerant::Loader<std::tuple<torch::Tensor>> loader;
  accelerant::Scheduler scheduler;
};

// No summary; traces go to the folder.
ProfileOptions into(const TempFolder& folder) {
  return {.output_trace_dir = folder.path("traces"), .summary = nullptr};
}

TEST(Profile, RecordsThePhasesOfATraining) {
  const TempFolder folder;
  ProfiledTraining training(on_cpu(accelerant::Precision::no, 2));
  PhaseTimes times;
  {
    auto profile = training.accelerator.profile(into(folder));
    training.epoch();
    {
      const auto span = training.accelerator.timeline().span("my own");
      const torch::NoGradGuard no_grad;
      training.model(scalar(1));
    }
    training.accelerator.save_state(folder.path("checkpoint"));
    profile.finish();
    times = profile.phase_times();
    EXPECT_EQ(profile.cycles(), 1);
  }
  const json trace = trace_in(folder.path("traces/profile_0.json"));
  EXPECT_EQ(count_in(trace, "data"), 7);  // the last one finds the end of the data
  EXPECT_EQ(count_in(trace, "transfer"), 0);
  EXPECT_EQ(count_in(trace, "forward"), 6);
  EXPECT_EQ(count_in(trace, "backward"), 6);
  EXPECT_EQ(count_in(trace, "clip"), 6);
  EXPECT_EQ(count_in(trace, "step"), 3);  // only at the end of a window
  EXPECT_EQ(count_in(trace, "zero_grad"), 6);
  EXPECT_EQ(count_in(trace, "schedule"), 6);
  EXPECT_EQ(count_in(trace, "evaluation"), 1);
  EXPECT_EQ(count_in(trace, "save"), 1);
  EXPECT_EQ(count_in(trace, "reduction"), 0);
  EXPECT_TRUE(is_inside(spans_in(trace, "evaluation")[0], spans_in(trace, "my own")[0]));
  EXPECT_TRUE(is_inside(spans_in(trace, "write checkpoint")[0], spans_in(trace, "save")[0]));
  EXPECT_EQ(thread_of(trace, spans_in(trace, "forward")[0]), "training");

  // Each iteration has its phases in order.
  const char* const order[] = {"data", "forward", "backward", "clip", "schedule", "zero_grad"};
  int64_t before = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    for (const char* name : order) {
      const json span = spans_in(trace, name)[i];
      EXPECT_GE(begin_of(span), before) << name << " " << i;
      before = end_of(span);
    }
  }
  EXPECT_EQ(times.count(Phase::step), 3);
  EXPECT_EQ(times.count(Phase::backward), 6);
  double sum = 0;
  for (const double seconds : times.seconds) sum += seconds;
  EXPECT_LE(sum, times.total);
  EXPECT_EQ(trace.at("accelerant").at("phase_counts").at("forward"), 6);
}

TEST(Profile, WithoutAScopeNothingIsRecorded) {
  ProfiledTraining training;
  training.epoch();
  { auto profile = training.accelerator.profile({.summary = nullptr}); }
  training.epoch();
  EXPECT_EQ(training.accelerator.timeline().events(), 0);
}

TEST(Profile, TheWriterOfCheckpointsHasATrackOfItsOwn) {
  const TempFolder folder;
  ProfiledTraining training;
  {
    auto profile = training.accelerator.profile(into(folder));
    training.accelerator.save_state(folder.path("checkpoint"), {.async = true});
    training.accelerator.wait_for_saves();
  }
  const json trace = trace_in(folder.path("traces/profile_0.json"));
  EXPECT_EQ(thread_of(trace, spans_in(trace, "write checkpoint").at(0)), "checkpoint writer");
  EXPECT_TRUE(
      is_inside(spans_in(trace, "copy for checkpoint").at(0), spans_in(trace, "save").at(0)));
}

TEST(Profile, AnExceptionLeavesAWholeFile) {
  const TempFolder folder;
  ProfiledTraining training;
  try {
    auto profile = training.accelerator.profile(into(folder));
    int steps = 0;
    training.epoch([&] {
      profile.step();
      if (++steps == 3) throw std::runtime_error("out of luck");
    });
    FAIL();
  } catch (const std::runtime_error&) {
  }
  const json trace = trace_in(folder.path("traces/profile_0.json"));
  EXPECT_EQ(count_in(trace, "step"), 3);
  EXPECT_EQ(count_in(trace, "step #2"), 1);
  EXPECT_FALSE(training.accelerator.timeline().is_on());
  auto again = training.accelerator.profile(into(folder));  // a new one can be created
}

TEST(Profile, FollowsASchedule) {
  struct Case {
    ProfileSchedule schedule;
    int64_t recordings;      // in 20 steps, including one that the end of the scope cuts short
    std::size_t last_steps;  // in the last recording
  };
  const Case cases[] = {
      {{.wait = 1, .warmup = 1, .active = 2, .repeat = 2}, 2, 2},
      {{.wait = 1, .warmup = 1, .active = 2}, 5, 2},
      {{.skip_first = 3, .wait = 2, .active = 1, .repeat = 1}, 1, 1},
      {{.active = 7}, 3, 6},
      {{.skip_first = 40, .active = 1}, 0, 0},
      {{.skip_first = 1, .wait = 5, .warmup = 1, .active = 6, .repeat = 3}, 2, 1},
  };
  for (const Case& each : cases) {
    const TempFolder folder;
    ProfiledTraining training(on_cpu(), 20);
    int64_t ready = 0;
    auto options = into(folder);
    options.schedule_option = each.schedule;
    options.on_trace_ready = [&](const ProfileScope& profile) {
      EXPECT_EQ(profile.cycles(), ++ready);
      const json trace = json::parse(profile.timeline().to_json());
      const auto steps = count_in(trace, "step");
      EXPECT_LE(steps, static_cast<std::size_t>(each.schedule.active));
      EXPECT_EQ(count_in(trace, "forward"), steps);
    };
    auto profile = training.accelerator.profile(options);
    training.epoch([&] { profile.step(); });
    EXPECT_EQ(profile.step_num(), 20);
    profile.finish();
    EXPECT_EQ(ready, each.recordings);
    if (each.recordings > 0) {
      EXPECT_EQ(count_in(trace_in(folder.path("traces/profile_0.json")), "step"), each.last_steps);
    }
  }
}

TEST(Profile, TellsTheScheduleApart) {
  const ProfileSchedule schedule{.skip_first = 1, .wait = 1, .warmup = 1, .active = 2, .repeat = 1};
  using enum ProfileAction;
  const ProfileAction expected[] = {none, none, warmup, record, record_and_save, none, none};
  for (int64_t step = 0; step < 7; ++step) {
    EXPECT_EQ(accelerant::action_at(schedule, step), expected[step]) << step;
  }
}

TEST(Profile, SumsUpAllRecordings) {
  ProfiledTraining training(on_cpu(), 12);
  auto profile = training.accelerator.profile(
      {.schedule_option = ProfileSchedule{.wait = 2, .active = 2}, .summary = nullptr});
  training.epoch([&] { profile.step(); });
  EXPECT_EQ(profile.phase_times().count(Phase::step), 6);
  profile.finish();
  profile.finish();
  profile.step();  // has no effect
  EXPECT_EQ(profile.phase_times().count(Phase::step), 6);
  EXPECT_TRUE(profile.summary().starts_with("time of 6 updates: ")) << profile.summary();
}

TEST(Profile, SaysWhereTheTimeWent) {
  const TempFolder folder;
  std::FILE* file = std::fopen(folder.path("line").c_str(), "w+");
  ASSERT_NE(file, nullptr);
  ProfiledTraining training;
  auto profile = training.accelerator.profile({.summary = file});
  training.epoch();
  profile.finish();
  std::fclose(file);
  const std::string line = TempFolder::content_of(folder.path("line"));
  EXPECT_TRUE(line.starts_with("time of 6 updates: ")) << line;
  EXPECT_TRUE(line.ends_with(" per update\n")) << line;
  EXPECT_EQ(line, profile.summary() + "\n");
}

TEST(Profile, AnEvaluationIsNoPartOfAnUpdate) {
  ProfiledTraining training;
  auto profile = training.accelerator.profile({.summary = nullptr});
  training.epoch();
  {
    const torch::NoGradGuard no_grad;
    for (auto&& [data] : training.loader) {
      training.model(data);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // metrics
    }
  }
  profile.finish();
  EXPECT_GE(profile.phase_times().of(Phase::evaluation), 10e-3);  // between six forwards
  EXPECT_TRUE(profile.summary().starts_with("time of 6 updates: ")) << profile.summary();
  EXPECT_TRUE(profile.summary().ends_with(" per update, evaluation not counted"))
      << profile.summary();
}

TEST(Profile, HasTheOptionsOfTheAccelerator) {
  const TempFolder folder;
  auto options = on_cpu();
  options.profile = into(folder);
  ProfiledTraining training(options);
  {
    auto profile = training.accelerator.profile();
    training.epoch();
  }
  EXPECT_EQ(count_in(trace_in(folder.path("traces/profile_0.json")), "forward"), 6);
}

TEST(Profile, RecordsKernelsWithTorchsProfiler) {
  const TempFolder folder;
  ProfiledTraining training;
  for (int time = 0; time < 2; ++time) {
    auto options = into(folder);
    options.with_kernels = options.record_shapes = true;
    options.schedule_option = ProfileSchedule{.wait = 1, .warmup = 1, .active = 2, .repeat = 1};
    auto profile = training.accelerator.profile(options);
    training.epoch([&] { profile.step(); });
  }
  const json ours = trace_in(folder.path("traces/profile_0.json"));
  const json kernels = trace_in(folder.path("traces/kernels_0.json"));
  EXPECT_EQ(count_in(kernels, "MeanBackward0"), 2);
  // Both traces use the same clock: the operator of a forward lies within it.
  const auto moment = [](const json& trace, const json& span) {
    return trace.at("baseTimeNanoseconds").get<int64_t>() + begin_of(span);
  };
  const json forward = spans_in(ours, "forward").at(0);
  const json product = spans_in(kernels, "aten::mul").at(0);
  EXPECT_GE(moment(kernels, product), moment(ours, forward) - 1'000'000);
  EXPECT_LE(moment(kernels, product),
            moment(ours, forward) + end_of(forward) - begin_of(forward) + 1'000'000);
}

TEST(Profile, RefusesWhatCannotBe) {
  ProfiledTraining training;
  Accelerator& accelerator = training.accelerator;
  for (const ProfileSchedule& wrong :
       {ProfileSchedule{.skip_first = -1}, ProfileSchedule{.wait = -1},
        ProfileSchedule{.warmup = -1}, ProfileSchedule{.active = 0},
        ProfileSchedule{.repeat = -1}}) {
    EXPECT_TRUE(
        contains(whole_error_of([&] { auto p = accelerator.profile({.schedule_option = wrong}); }),
                 "The schedule of a profile"));
  }
  EXPECT_TRUE(
      contains(whole_error_of([&] { auto p = accelerator.profile({.with_kernels = true}); }),
               "output_trace_dir"));
  whole_error_of([&] {
    auto p = accelerator.profile({.output_trace_dir = "/proc/not possible", .summary = nullptr});
  });
  auto first = accelerator.profile({.summary = nullptr});
  EXPECT_TRUE(
      contains(whole_error_of([&] { auto second = accelerator.profile(); }), "already open"));
  first.finish();
  auto third = accelerator.profile({.summary = nullptr});
  auto moved = std::move(third);
  moved.step();
}

TEST(Profile, WarnsWhenThereIsNoRoom) {
  const GatheredLog log;
  ProfiledTraining training;
  {
    auto profile = training.accelerator.profile({.max_events = 10, .summary = nullptr});
    training.epoch();
    EXPECT_EQ(profile.phase_times().count(Phase::forward), 6);
  }
  EXPECT_TRUE(contains(log.text(), "the profile is full"));
}

TEST(Profile, DoesNotChangeATraining) {
  const TempFolder folder;
  ProfiledTraining plain, profiled;
  plain.epoch();
  {
    auto options = into(folder);
    options.with_kernels = true;
    auto profile = profiled.accelerator.profile(options);
    profiled.epoch();
  }
  EXPECT_TRUE(torch::equal(plain.net->w, profiled.net->w));
}

RANK_TEST(ProfileRanks, EachWritesItsFile, 2) {
  // Both ranks have the same port, and no other test has it.
  const std::string folder =
      testing::TempDir() + "accelerant-profile-" + std::getenv("MASTER_PORT");
  {
    ProfiledTraining training(on_cpu(), 8);
    auto profile = training.accelerator.profile({.output_trace_dir = folder, .summary = nullptr});
    training.epoch();
    training.accelerator.gather(scalar(rank()));
    profile.finish();
    training.accelerator.wait_for_everyone();
  }
  const json trace = trace_in(folder + "/profile_" + std::to_string(rank()) + ".json");
  EXPECT_EQ(trace.at("accelerant").at("rank"), rank());
  for (const json& event : trace.at("traceEvents")) EXPECT_EQ(event.at("pid"), rank());
  EXPECT_EQ(count_in(trace, "backward"), 4);
  EXPECT_EQ(count_in(trace, "reduction"), 4);
  EXPECT_EQ(count_in(trace, "gather"), 2);  // shapes are compared first
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(is_inside(spans_in(trace, "reduction")[i], spans_in(trace, "backward")[i]));
  }
  EXPECT_EQ(trace.at("accelerant").at("phase_counts").at("reduction"), 4);
  run_in_shell("rm -f '" + folder + "/profile_" + std::to_string(rank()) + ".json'; rmdir '" +
               folder + "' 2>/dev/null || true");
}

}  // namespace
}  // namespace accelerator_test
