#include <accelerant/dist/collectives.h>
#include <accelerant/dist/process_control.h>
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/world.h"

using namespace accelerant::dist;  // NOLINT: what is tested

namespace process_control_test {

using nlohmann::json;
using namespace std::chrono_literals;

// --- Objects ----------------------------------------------------------------------------------------

RANK_TEST(Objects, GatherOfAnySize, 3) {
  const auto world = join_world();
  for (const std::size_t unit : {0, 1, 100, 250, 300, 700, 100000}) {
    const std::string own(unit * static_cast<std::size_t>(rank()), static_cast<char>(rank()));
    const std::vector<std::string> all = gather_bytes(*world, own);
    ASSERT_EQ(all.size(), 3U);
    for (std::size_t other = 0; other < 3; ++other) {
      EXPECT_EQ(all[other], std::string(unit * other, static_cast<char>(other)));
    }
  }
  const json own = {{"rank", rank()}, {"nan", std::nan("")}, {"list", json::array({1, "two"})}};
  const std::vector<json> all = gather_object(*world, own);
  EXPECT_EQ(all[2]["rank"], 2);
  EXPECT_TRUE(std::isnan(all[1]["nan"].get<double>()));
  EXPECT_EQ(all[0]["list"], own["list"]);
}

RANK_TEST(Objects, ListsAreJoined, 3) {
  const auto world = join_world();
  const std::vector<json> own(static_cast<std::size_t>(rank()), json(rank()));
  EXPECT_EQ(gather_object_list(*world, own), (std::vector<json>{1, 2, 2}));
}

RANK_TEST(Objects, Broadcast, 3) {
  const auto world = join_world();
  json value = rank() == 1 ? json{{"name", std::string(5000, 'x')}} : json(rank());
  broadcast_object(*world, value, 1);
  EXPECT_EQ(value.at("name").get<std::string>().size(), 5000U);
  std::vector<json> list(static_cast<std::size_t>(rank() + 1), json("old"));
  broadcast_object_list(*world, list, 2);
  EXPECT_EQ(list.size(), 3U);
  std::string bytes = rank() == 0 ? "" : "something";
  broadcast_bytes(*world, bytes);
  EXPECT_EQ(bytes, "");
  EXPECT_THROW(broadcast_object(*world, value, 3), accelerant::Error);
}

TEST(Objects, OneProcess) {
  const auto world = World::join({});
  EXPECT_EQ(gather_object(*world, json{1, 2}), (std::vector<json>{json{1, 2}}));
  EXPECT_EQ(gather_object_list(*world, {1, 2}), (std::vector<json>{1, 2}));
  json value = 3;
  broadcast_object(*world, value);
  EXPECT_EQ(value, 3);
}

// --- Waiting ----------------------------------------------------------------------------------------

RANK_TEST(ProcessControl, WaitForEveryone, 4) {
  const auto world = join_world();
  for (int i = 0; i < 50; ++i) wait_for_everyone(*world);
  wait_for_everyone(*world, "named");
}

// Rank 2 does not come. It stays alive until the others have given up, so that only the timeout
// reveals it.
RANK_TEST(ProcessControl, TheMissingAreNamedOnEveryRank, 4) {
  // On a slow rank, the monitor might notice first that the others have given up.
  const auto world = join_world({.timeout = 2s, .monitor = {.enabled = false}});
  wait_for_everyone(*world);
  if (rank() == 2) {
    std::this_thread::sleep_for(6s);
    return;
  }
  const std::string error = whole_error_of([&] { wait_for_everyone(*world, "after loading"); });
  EXPECT_TRUE(contains(
      error, "wait_for_everyone ('after loading') failed on rank " + std::to_string(rank())));
  EXPECT_TRUE(contains(error, "rank 2 missing")) << "and nobody else";
  EXPECT_TRUE(contains(error, "within 2 s"));
  std::this_thread::sleep_for(2s);  // the store must be there until the last has looked
}

RANK_TEST(ProcessControl, TheDeadAreNamedAtOnce, 3) {
  const auto world = join_world({.timeout = 50s});
  if (rank() == 1) std::_Exit(0);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(contains(whole_error_of([&] { wait_for_everyone(*world); }), "rank 1 missing"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 40s) << "long before the timeout";
  if (rank() == 0) std::this_thread::sleep_for(1s);
}

RANK_TEST(ProcessControl, MainProcessFirst, 3) {
  const auto world = join_world();
  // The others run only after the main process.
  json seen;
  const int result = main_process_first(*world, [&] {
    if (rank() == 0) std::this_thread::sleep_for(200ms);
    seen =
        std::chrono::steady_clock::now().time_since_epoch().count();  // one clock for all processes
    return rank() + 10;
  });
  EXPECT_EQ(result, rank() + 10);
  const auto times = gather_object(*world, seen);
  EXPECT_LT(times[0], times[1]);
  EXPECT_LT(times[0], times[2]);
  int calls = 0;
  local_main_process_first(*world, [&] { ++calls; });  // nothing to return
  EXPECT_EQ(calls, 1);
}

RANK_TEST(ProcessControl, AFailureOfTheMainProcessReleasesTheOthers, 3) {
  const auto world = join_world();
  bool called = false;
  const auto load = [&]() -> int {
    called = true;
    if (rank() == 0) throw std::runtime_error("the disk is full");
    return 1;
  };
  if (rank() == 0) {
    EXPECT_THROW(main_process_first(*world, load), std::runtime_error);
  } else {
    const std::string error = whole_error_of([&] { main_process_first(*world, load); });
    EXPECT_TRUE(contains(error, "rank 0 failed: the disk is full"));
    EXPECT_FALSE(called);
  }
  wait_for_everyone(*world);  // all are still in step
}

// Two machines with two processes each, according to the environment.
RANK_TEST(ProcessControl, LocalMainProcessesGoFirstOnTheirMachine, 4) {
  auto environment = Environment::detect();
  environment.local_process_index = rank() % 2;
  environment.local_num_processes = 2;
  const auto world = World::join(environment);
  const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
  const json time = local_main_process_first(*world, [&] {
    if (rank() == 2) std::this_thread::sleep_for(100ms);
    return now();
  });
  const auto times = gather_object(*world, time);
  EXPECT_LT(times[0], times[1]);
  EXPECT_LT(times[2], times[3]);
  const auto fail = [&] {
    if (rank() == 2) throw std::runtime_error("no network");
  };
  if (rank() == 2) {
    EXPECT_THROW(local_main_process_first(*world, fail), std::runtime_error);
  } else {
    EXPECT_TRUE(contains(whole_error_of([&] { local_main_process_first(*world, fail); }),
                         "rank 2 failed: no network"));
  }
}

TEST(ProcessControl, OneProcess) {
  const auto world = World::join({});
  wait_for_everyone(*world);
  EXPECT_EQ(main_process_first(*world, [] { return 5; }), 5);
  EXPECT_THROW(main_process_first(*world, [] { throw std::runtime_error("x"); }),
               std::runtime_error);
}

// --- Debug mode -------------------------------------------------------------------------------------

RANK_TEST(DebugMode, AnotherOperationIsAnErrorOnAll, 3) {
  const auto world = join_world({.debug = true});
  EXPECT_TRUE(world->is_debug());
  wait_for_everyone(*world);
  const std::string error = whole_error_of([&] {
    if (rank() == 0) {
      gather(*world, torch::ones({2}));
    } else if (rank() == 1) {
      wait_for_everyone(*world);
    } else {
      gather_object(*world, 1);
    }
  });
  for (const char* part :
       {"not at the same exchange", "rank 0: gather (call 2) float32[2]",
        "rank 1: wait_for_everyone (call 2)", "rank 2: gather_object (call 2)"}) {
    EXPECT_TRUE(contains(error, part));
  }
  EXPECT_TRUE(any(*world, true));
  EXPECT_EQ(main_process_first(*world, [] { return 1; }), 1);
  at::Tensor sum = torch::ones({1});
  all_reduce_(*world, sum);
  EXPECT_EQ(sum.item<float>(), 3.0F);
}

RANK_TEST_WITH(DebugMode, FromTheEnvironment,
               {.num_ranks = 2, .environment = {{"ACCELERATE_DEBUG_MODE", "1"}}}) {
  EXPECT_TRUE(join_world()->is_debug());
  EXPECT_FALSE(join_world({.debug = false})->is_debug());
}

RANK_TEST_WITH(DebugMode, BadVariable,
               {.num_ranks = 1, .environment = {{"ACCELERATE_DEBUG_MODE", "maybe"}}}) {
  EXPECT_TRUE(contains(error_of([&] { World::join({}); }), "ACCELERATE_DEBUG_MODE"));
}

// --- Messages ---------------------------------------------------------------------------------------

RANK_TEST(DistLog, ByOneOrInOrder, 3) {
  const auto world = join_world();
  std::vector<int64_t> times;
  accelerant::set_log_handler([&](accelerant::LogLevel, std::string_view) {
    times.push_back(std::chrono::steady_clock::now().time_since_epoch().count());
  });
  log_on_main_process(*world, accelerant::LogLevel::info, "once");
  EXPECT_EQ(times.size(), rank() == 0 ? 1U : 0U);
  log_on_local_main_process(*world, accelerant::LogLevel::info, "once");
  EXPECT_EQ(times.size(), rank() == 0 ? 2U : 0U);
  log_in_order(*world, accelerant::LogLevel::info, "from each");
  const auto all = gather_object(*world, times.back());
  EXPECT_LT(all[0], all[1]);
  EXPECT_LT(all[1], all[2]);
  accelerant::set_log_handler({});
}

}  // namespace process_control_test
