#include "dist/side_channel.h"

#include <accelerant/core/failpoint.h>
#include <accelerant/dist/collectives.h>
#include <accelerant/dist/process_control.h>
#include <signal.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "dist/groups.h"
#include "dist/world_access.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/world.h"

using namespace accelerant::dist;  // NOLINT: what is tested

namespace side_channel_test {

using namespace std::chrono_literals;

std::string text_of(int64_t rank, int64_t call, size_t size) {
  const std::string name = std::to_string(rank) + "/" + std::to_string(call) + "/";
  return size == 0 ? "" : name + std::string(size, static_cast<char>(call % 256));
}

// Makes both calls with texts of this size and checks every byte.
void exchange_texts(SideChannel& channel, int64_t call, size_t size) {
  const auto all = channel.collect(text_of(rank(), call, size));
  ASSERT_EQ(all.size(), rank() == 0 ? static_cast<size_t>(num_ranks()) : 0U);
  for (size_t other = 0; other < all.size(); ++other)
    ASSERT_EQ(all[other], text_of(static_cast<int64_t>(other), call, size));
  const std::string own = rank() == 0 ? text_of(7, call, size) : "ignored";
  ASSERT_EQ(channel.announce(own), text_of(7, call, size));
}

// Makes the call in a thread of its own and returns its error.
template <class F>
std::future<std::string> error_in_background(F f) {
  return std::async(std::launch::async, [f] { return whole_error_of(f); });
}

// --- Texts ----------------------------------------------------------------------------------------

TEST(SideChannel, OneProcessNeedsNobody) {
  const auto world = World::join(Environment{});
  const auto channel = SideChannel::open(*world, "saving");
  EXPECT_EQ(channel->collect("mine"), std::vector<std::string>{"mine"});
  EXPECT_EQ(channel->announce(""), "");
  channel->stop();
  EXPECT_TRUE(contains(whole_error_of([&] { channel->collect(""); }), "(saving) was stopped"));
  EXPECT_TRUE(contains(whole_error_of([&] { channel->announce(""); }), "was stopped"));
}

// Counts the keys of the whole store while all processes wait here.
int64_t num_keys(const World& world) {
  wait_for_everyone(world);
  const int64_t count = accelerant::dist::WorldAccess::groups(world).store->getNumKeys();
  wait_for_everyone(world);
  return count;
}

RANK_TEST(SideChannel, ThousandsOfCallsLeaveNothingInTheStore, 2) {
  const auto world =
      join_world({.monitor = {.enabled = false}});  // the monitor's keys may come at any time
  const int64_t before = num_keys(*world);
  auto channel = SideChannel::open(*world, "saving");
  for (int64_t call = 0; call < 1500; ++call)
    exchange_texts(*channel, call, static_cast<size_t>(call % 40));
  EXPECT_EQ(num_keys(*world), before);
  channel.reset();
  EXPECT_EQ(num_keys(*world), before);
}

RANK_TEST(SideChannel, TextsOfAnySize, 4) {
  const auto world = join_world();
  const auto channel = SideChannel::open(*world, "saving");
  int64_t call = 0;
  for (const size_t size : {0U, 1U, 1000U, 1U << 20, 0U}) exchange_texts(*channel, ++call, size);
}

RANK_TEST(SideChannel, SeveralChannelsDoNotMeet, 3) {
  const auto world = join_world();
  const auto one = SideChannel::open(*world, "saving");
  const auto other = SideChannel::open(*world, "saving");
  std::thread thread([&] {
    for (int64_t call = 0; call < 50; ++call) exchange_texts(*one, call, 10);
  });
  for (int64_t call = 0; call < 50; ++call) exchange_texts(*other, call, 20);
  thread.join();
}

RANK_TEST(SideChannel, WorksWhileTheMainThreadsExchangeTensors, 3) {
  const auto world = join_world();
  const auto channel = SideChannel::open(*world, "saving");
  std::atomic<int64_t> done = 0;
  std::thread thread([&] {
    for (int64_t call = 0; call < 300; ++call) {
      exchange_texts(*channel, call, 1000);
      ++done;
    }
  });
  bool all_done = false;
  int64_t rounds = 0;
  for (; !all_done; ++rounds) {
    const auto sum = torch::full({100}, rank() + 1.0);
    all_reduce_(*world, sum);
    ASSERT_EQ(sum[0].item<double>(), 6);
    const auto slowest = torch::tensor({done.load() == 300 ? 1 : 0});
    all_reduce_(*world, slowest);
    all_done = slowest.item<int64_t>() == 3;
  }
  thread.join();
  EXPECT_GT(rounds, 1);
}

RANK_TEST(SideChannel, ATextThatIsTooLongIsAnErrorOnAll, 2) {
  const auto world = join_world();
  const auto channel = SideChannel::open(*world, "saving");
  const std::string text(rank() == 1 ? (4U << 20) + 1 : 0, 'x');
  if (rank() == 1) {
    EXPECT_TRUE(contains(whole_error_of([&] { channel->collect(text); }), "too long"));
    EXPECT_TRUE(contains(whole_error_of([&] { channel->announce(""); }), "too long"));
  } else {
    const auto error = whole_error_of([&] { channel->collect(text); });
    EXPECT_TRUE(error.starts_with("Rank 1 no longer takes part: A text is too long")) << error;
  }
  wait_for_everyone(*world);
}

// --- The end --------------------------------------------------------------------------------------

RANK_TEST(SideChannel, StopEndsAWait, 3) {
  const auto world = join_world();
  auto channel = SideChannel::open(*world, "saving");
  // Rank 2 makes no call: 0 waits for all, and 1 waits for 0.
  if (rank() == 2) {
    wait_for_everyone(*world);
  } else {
    auto error = error_in_background([&] {
      if (rank() == 0) channel->collect("");
      channel->announce("");
    });
    EXPECT_EQ(error.wait_for(300ms), std::future_status::timeout);
    wait_for_everyone(*world);  // the main thread is free meanwhile
    channel->stop();
    ASSERT_EQ(error.wait_for(10s), std::future_status::ready);
    EXPECT_TRUE(contains(error.get(), "was stopped"));  // this rank, or one it waits for
    EXPECT_TRUE(contains(whole_error_of([&] { channel->collect(""); }), "was stopped"));
  }
  channel.reset();
  wait_for_everyone(*world);
}

RANK_TEST(SideChannel, OneThatStopsWhenItIsDoneDoesNotDisturbTheOthers, 3) {
  const auto world = join_world();
  const auto channel = SideChannel::open(*world, "saving");
  if (rank() == 1) std::this_thread::sleep_for(1000ms);  // longer than others take to look for it
  const auto all = channel->collect(std::to_string(rank()));
  if (rank() == 2) channel->stop();
  if (rank() == 0) {
    EXPECT_EQ(all, (std::vector<std::string>{"0", "1", "2"}));
    channel->announce("done");
    channel->stop();  // before 1 has read it
  }
  if (rank() == 1) {
    EXPECT_EQ(channel->announce(""), "done");
  }
  wait_for_everyone(*world);
}

RANK_TEST(SideChannel, OneThatStopsEarlyEndsTheWaitsOfTheOthers, 3) {
  const auto world = join_world();
  const auto channel = SideChannel::open(*world, "saving");
  if (rank() == 1) {
    channel->stop();
  } else {
    const auto error = whole_error_of([&] {
      channel->collect("");
      channel->announce("");
    });
    const std::string cause = "Rank 1 no longer takes part: it was stopped (saving)";
    EXPECT_TRUE(contains(error, cause));
    if (rank() == 2) {
      EXPECT_TRUE(error.starts_with("Rank 0 no longer takes part: ")) << error;
    }
  }
  wait_for_everyone(*world);
}

RANK_TEST(SideChannel, TheTimeoutNamesThoseMissing, 4) {
  const auto world = join_world({.timeout = 4s});
  const auto channel = SideChannel::open(*world, "saving");
  wait_for_everyone(*world);
  if (rank() == 0) {
    const auto error = whole_error_of([&] { channel->collect(""); });
    EXPECT_TRUE(contains(error, "(saving): expected 4 processes"));
    EXPECT_TRUE(contains(error, "got ranks 2 and 3 missing"));
    EXPECT_EQ(whole_error_of([&] { channel->announce(""); }), error);
  } else if (rank() == 1) {
    channel->collect("");
    // It learns this from rank 0, or its own timeout ends.
    EXPECT_TRUE(contains(whole_error_of([&] { channel->announce(""); }), "missing"));
  } else {
    std::this_thread::sleep_for(6s);
  }
}

RANK_TEST(SideChannel, TheEndOfTheWorldEndsAWait, 2) {
  auto world = join_world();
  const auto channel = SideChannel::open(*world, "saving");
  auto error = error_in_background([&] {
    if (rank() == 0) channel->collect("");
    channel->announce("");
  });
  if (rank() == 0) std::this_thread::sleep_for(200ms);
  world->close();
  world.reset();
  ASSERT_EQ(error.wait_for(10s), std::future_status::ready);
  const std::string text = error.get();
  EXPECT_TRUE(text.starts_with("The World ended") || text.starts_with("Rank ")) << text;
  EXPECT_EQ(whole_error_of([&] { channel->collect(""); }), text);
}

// --- Faults ---------------------------------------------------------------------------------------

// Runs in a background thread until an error, and prints the error to standard output.
void save_again_and_again(SideChannel& channel) {
  try {
    while (true) {
      channel.collect("");
      channel.announce("");
      std::this_thread::sleep_for(5ms);
    }
  } catch (const accelerant::Error& error) {
    std::cout << "channel: " << error.what() << std::endl;
  }
}

accelerant::launch::RunRanksResult run_with(const std::string& failpoint, int count) {
  return rank_test::run({.num_ranks = count,
                         .grace = 30,  // time for the others to notice
                         .environment = {{"ACCELERANT_FAILPOINT", failpoint}}});
}

// The main thread exchanges tensors until that fails, and then waits for the background thread.
void save_and_train() {
  signal(SIGTERM, SIG_IGN);  // sent by the launcher when a rank has ended: let the others report
  // Gloo may miss the end of a process that it is sending to. The exchange then ends at its
  // timeout.
  const auto world = join_world({.timeout = 20s});
  const auto channel = SideChannel::open(*world, "saving");
  std::thread thread([&] { save_again_and_again(*channel); });
  try {
    while (true) all_reduce_(*world, torch::ones({1}));
  } catch (const accelerant::Error&) {
  }
  thread.join();
}

void expect_errors(const accelerant::launch::RunRanksResult& result, size_t dead) {
  for (size_t each = 0; each < result.ranks.size(); ++each) {
    if (each == dead) continue;
    EXPECT_EQ(result.ranks[each].exit_code, 0) << result.ranks[each].err;
    EXPECT_TRUE(contains(result.ranks[each].out, "channel: "));
    EXPECT_FALSE(contains(result.ranks[each].out, "Not all processes have arrived"));
  }
}

TEST(SideChannel, ARankIsKilled) {
  if (rank_test::is_rank()) return save_and_train();
  const auto result = run_with("side_channel.collect:kill@20/rank=1", 3);
  EXPECT_EQ(result.ranks[1].signal, SIGKILL);
  expect_errors(result, 1);
}

TEST(SideChannel, TheRankThatServesTheStoreIsKilled) {
  if (rank_test::is_rank()) return save_and_train();
  const auto result = run_with("side_channel.announce:kill@20/rank=0", 3);
  EXPECT_EQ(result.ranks[0].signal, SIGKILL);
  expect_errors(result, 0);
}

TEST(SideChannel, ARankThatFailsIsNamed) {
  if (rank_test::is_rank()) {
    signal(SIGTERM, SIG_IGN);
    const auto world = join_world();
    const auto channel = SideChannel::open(*world, "saving");
    if (rank() == 1)  // where GoogleTest does not catch it
      std::thread([] { throw accelerant::Error("there is no milk"); }).join();
    return save_again_and_again(*channel);
  }
  const auto result = rank_test::run({.num_ranks = 3, .grace = 30});
  expect_errors(result, 1);
  EXPECT_TRUE(contains(result.ranks[0].out, "channel: Rank 1 failed: there is no milk"));
  // Rank 2 may first notice the end of rank 0, which serves the store.
}

TEST(SideChannel, AStoreThatDoesNotAnswerDoesNotHoldUpTheEnd) {
  if (rank_test::is_rank()) {
    signal(SIGTERM, SIG_IGN);
    const auto world = join_world({.timeout = 20s});
    const auto channel = SideChannel::open(*world, "saving");
    wait_for_everyone(*world);
    if (rank() == 0) {
      accelerant::failpoint("stopped");
      return;
    }
    std::thread thread([&] { save_again_and_again(*channel); });
    std::this_thread::sleep_for(1s);
    channel->stop();
    thread.join();
    std::cout << "joined" << std::endl;
    std::_Exit(3);  // so that the launcher ends the other
  }
  const auto result = run_with("stopped:stop/rank=0", 2);
  EXPECT_TRUE(contains(result.ranks[1].out, "channel: The exchange of messages"));
  EXPECT_TRUE(contains(result.ranks[1].out, "joined"));
}

}  // namespace side_channel_test
