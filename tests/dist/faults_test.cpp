// What the processes of a run say and do when one of them dies, hangs or makes different calls.
//
// Failpoints (core/failpoint.h) cause the faults. The ranks train in a thread, where GoogleTest
// catches nothing: an Error ends them as it ends a program that does not catch it.

#include <accelerant/accelerator/accelerator.h>
#include <accelerant/core/failpoint.h>
#include <accelerant/core/log.h>
#include <accelerant/dist/collectives.h>
#include <accelerant/dist/process_control.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <thread>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace {

using accelerant::Accelerator;
using accelerant::AcceleratorOptions;
using accelerant::LogLevel;
using accelerant::launch::RankResult;
using accelerant::launch::RunRanksResult;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Everything is faster than by default, except for what a busy machine needs.
AcceleratorOptions quick_options() {
  return {.cpu = true,
          .process_group = {.timeout = seconds(60),
                            .monitor = {.interval = milliseconds(50),
                                        .stuck_after = milliseconds(500),
                                        .mismatch_after = milliseconds(200)}}};
}

using EachStep = std::function<void(Accelerator&, int step)>;  // called before the step

void train_here(const AcceleratorOptions& options, int steps, const EachStep& each_step) {
  signal(SIGTERM, SIG_IGN);  // sent by the launcher when a rank has ended: let the others report
  torch::manual_seed(1);
  torch::nn::Linear net(4, 2);
  net->weight.register_hook([](const torch::Tensor& gradient) {
    accelerant::failpoint("gradient");  // in the middle of backward
    return gradient;
  });
  torch::optim::SGD sgd(net->parameters(), 0.1);
  Accelerator accelerator(options);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 1; step <= steps; ++step) {
    if (each_step) each_step(accelerator, step);
    accelerator.backward(model(torch::ones({3, 4})).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
}

void train(const AcceleratorOptions& options, int steps, const EachStep& each_step = {}) {
  std::thread([&] { train_here(options, steps, each_step); }).join();
}

RunRanksResult run_with(const std::string& failpoint, int num_ranks,
                        std::map<std::string, std::string> environment = {}) {
  environment["ACCELERANT_FAILPOINT"] = failpoint;
  return rank_test::run({.num_ranks = num_ranks, .environment = environment});
}

// The message in the rank's report. Checks that the rank ended by itself, with status 1.
std::string error_report(const RunRanksResult& result, size_t rank) {
  const RankResult& ended = result.ranks.at(rank);
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  const std::string name = "[rank " + std::to_string(rank) + "] ";
  EXPECT_TRUE(contains(ended.err, name + "terminated") ||
              contains(ended.err, "can never complete") || contains(ended.err, "has waited in"));
  if (!ended.error) {
    ADD_FAILURE() << "rank " << rank << " left no report:\n" << ended.err;
    return "";
  }
  EXPECT_EQ(ended.error->rank, static_cast<int64_t>(rank));
  // The report has the rank in a field of its own, so the message does not repeat it.
  EXPECT_FALSE(ended.error->message.starts_with(name.substr(1, name.size() - 3)));
  EXPECT_EQ(ended.error->message.find("Rank " + std::to_string(rank)), std::string::npos);
  return ended.error->message;
}

TEST(Faults, ARankDiesInBackward) {
  if (rank_test::is_rank()) return train(quick_options(), 5);
  const auto result = run_with("gradient:kill@3/rank=1", 2);
  EXPECT_EQ(result.ranks[1].signal, SIGKILL);
  const std::string error = error_report(result, 0);
  EXPECT_TRUE(error.starts_with("Rank 1 has ended without a word"));
  EXPECT_TRUE(contains(error, "(averaging gradients)"));
  EXPECT_EQ(result.ranks[0].error->step, 3);
}

TEST(Faults, OneOfManyRanksDies) {
  if (rank_test::is_rank()) return train(quick_options(), 5);
  const auto result = run_with("gradient:kill@3/rank=1", 4);
  EXPECT_EQ(result.ranks[1].signal, SIGKILL);
  // A rank that notices only because another survivor has ended cannot tell which rank ended first.
  for (const size_t survivor : {0U, 2U, 3U}) EXPECT_NE(error_report(result, survivor), "");
}

TEST(Faults, TheRankThatServesTheStoreDies) {
  if (rank_test::is_rank()) return train(quick_options(), 5);
  const auto result = run_with("gradient:kill@3/rank=0", 3);
  EXPECT_EQ(result.ranks[0].signal, SIGKILL);
  for (const size_t survivor : {1U, 2U}) EXPECT_NE(error_report(result, survivor), "");
}

TEST(Faults, AnErrorOfOneRankIsNamedByTheOthers) {
  if (rank_test::is_rank()) return train(quick_options(), 5);
  const auto result = run_with("backward:throw@2/rank=1", 2);
  const std::string cause = error_report(result, 1);
  EXPECT_TRUE(contains(cause, "failpoint backward"));
  EXPECT_TRUE(error_report(result, 0).starts_with("Rank 1 failed: " + cause));
  EXPECT_TRUE(contains(result.report, "failpoint backward"));
}

TEST(Faults, AHungRankIsNamedByTheMonitorAndByTheTimeout) {
  if (rank_test::is_rank()) {
    auto options = quick_options();
    options.process_group.timeout = seconds(4);
    return train(options, 5);
  }
  const auto result = run_with("gradient:stop@3/rank=1", 2);
  const std::string error = error_report(result, 0);
  EXPECT_TRUE(contains(error, "waited too long for the others"));
  EXPECT_TRUE(error.starts_with("Rank 1 has not answered"));
  EXPECT_TRUE(contains(result.ranks[0].err, "warning: rank 1 has not answered"));
}

AcceleratorOptions options_that_give_up() {
  auto options = quick_options();
  options.process_group.monitor.lost_after = seconds(2);
  return options;
}

TEST(Faults, AStoppedRankEndsTheRunLongBeforeTheTimeout) {
  if (rank_test::is_rank()) return train(options_that_give_up(), 5);
  const auto result = run_with("backward:sleep=200,gradient:stop@3/rank=1", 2);
  const std::string error = error_report(result, 0);
  EXPECT_TRUE(error.starts_with("has waited in averaging gradients (exchange ")) << error;
  EXPECT_TRUE(contains(error, "(last heard at step 3, in "));
  EXPECT_EQ(result.ranks[0].error->step, 3);
}

TEST(Faults, AStoppedStoreEndsTheRunLongBeforeTheTimeout) {
  if (rank_test::is_rank()) return train(options_that_give_up(), 5);
  const auto result = run_with("gradient:stop@3/rank=0", 2);
  EXPECT_TRUE(contains(error_report(result, 1), "and the store has not answered for"));
}

// By Ctrl-Z, by a scheduler, because the lid of a laptop is closed.
TEST(Faults, ARunThatIsStoppedAsAWholeGoesOn) {
  if (rank_test::is_rank()) {
    return train(options_that_give_up(), 8, [](Accelerator&, int step) {
      if (step != 3) return;
      const pid_t rank = getpid();
      if (fork() != 0) return;
      kill(rank, SIGSTOP);
      sleep(4);
      kill(rank, SIGCONT);
      _exit(0);
    });
  }
  const auto result = run_with("backward:sleep=100", 2);
  EXPECT_TRUE(result.succeeded()) << result.report;
}

TEST(Faults, TheRankThatServesTheStoreHangs) {
  if (rank_test::is_rank()) {
    auto options = quick_options();
    options.process_group.timeout = seconds(4);
    return train(options, 5);
  }
  const auto result = run_with("gradient:stop@3/rank=0", 2);
  EXPECT_TRUE(error_report(result, 1).starts_with("The store does not answer"));
  EXPECT_TRUE(contains(result.ranks[1].err, "warning: the store has not answered"));
}

TEST(Faults, ARankInAnEndlessLoopIsNamed) {
  if (rank_test::is_rank()) {
    auto options = quick_options();
    options.process_group.timeout = seconds(4);
    // With a shorter interval, a rank whose monitor thread is late would count as silent.
    options.process_group.monitor.interval = milliseconds(1000);
    return train(options, 5);
  }
  const auto result = run_with("backward:hang@3/rank=1", 2);
  EXPECT_TRUE(error_report(result, 0).starts_with("Rank 1 is behind, at step 3, in user code"));
  EXPECT_TRUE(contains(result.ranks[0].err, "rank 1 is at step 3, in user code"));
  EXPECT_TRUE(contains(result.ranks[0].err, "rank 0 waits in averaging gradients"));
}

// c10d logs what() of every lost connection, also at the end of runs that succeed.
TEST(Faults, ErrorsOfLibtorchHaveStackFramesOnlyIfAskedFor) {
  if (rank_test::is_rank()) {
    const Accelerator accelerator(quick_options());
    try {
      TORCH_CHECK(false, "a check that failed");
    } catch (const c10::Error& error) {
      std::cout << error.what() << std::endl;
    }
    return accelerator.wait_for_everyone();
  }
  for (const bool wanted : {false, true}) {
    const auto result = rank_test::run(
        {.num_ranks = 2, .environment = {{"TORCH_SHOW_CPP_STACKTRACES", wanted ? "1" : "0"}}});
    EXPECT_TRUE(result.succeeded()) << result.report;
    for (const auto& ended : result.ranks) {
      EXPECT_TRUE(contains(ended.out, "a check that failed"));
      const bool has_frames = ended.out.find("frame #") != std::string::npos ||
                              ended.out.find("CapturedTraceback") != std::string::npos;
      EXPECT_EQ(has_frames, wanted) << ended.out;
    }
  }
}

// --- Stopped for a moment -------------------------------------------------------------------------

// Starts a process that continues `stopped` as soon as the file exists.
void continue_when_there_is(const std::string& file, pid_t stopped) {
  if (fork() != 0) return;
  while (access(file.c_str(), F_OK) != 0 && getppid() == stopped) usleep(10'000);
  kill(stopped, SIGCONT);
  _exit(0);
}

TEST(Faults, ARankThatIsStoppedForAMomentGoesOn) {
  if (rank_test::is_rank()) {
    const std::string noticed = std::getenv("FAULTS_FILE");
    if (rank() == 1) continue_when_there_is(noticed, getpid());
    accelerant::set_log_handler([&](LogLevel, std::string_view text) {
      std::cout << text << std::endl;
      if (text.starts_with("rank 1 has not answered")) std::ofstream(noticed) << "1";
    });
    return train(quick_options(), 5);
  }
  const TempFolder folder;
  const auto result =
      run_with("gradient:stop@3/rank=1", 2, {{"FAULTS_FILE", folder.path("noticed")}});
  EXPECT_TRUE(result.succeeded()) << result.report;
  EXPECT_TRUE(contains(result.ranks[0].out, "rank 1 has not answered"));
}

TEST(Faults, SlowRanksAreNoFault) {
  if (rank_test::is_rank()) return train(quick_options(), 4);
  // This is longer than it takes to notice exchanges that do not match.
  const auto result = run_with("backward:sleep=700/rank=1", 2);
  EXPECT_TRUE(result.succeeded()) << result.report;
  EXPECT_EQ(result.ranks[0].err.find("error"), std::string::npos) << result.ranks[0].err;
}

// --- Different calls ------------------------------------------------------------------------------

TEST(Faults, ACollectiveThatOneRankSkipsIsAnError) {
  if (rank_test::is_rank()) {
    return train(quick_options(), 5, [](Accelerator& accelerator, int step) {
      if (step == 3 && rank() == 0) accelerant::dist::wait_for_everyone(accelerator.world());
    });
  }
  const auto result = rank_test::run({.num_ranks = 2});
  const std::string error_0 = result.ranks[0].err;
  const std::string error_1 = result.ranks[1].err;
  // The first to notice ends the connection of the other.
  EXPECT_TRUE(contains(error_0 + error_1, "can never complete"));
  EXPECT_TRUE(contains(error_0 + error_1, "of rank 0 is wait_for_everyone (step 2)") ||
              contains(error_0 + error_1, "of rank 1 is averaging gradients (step 3)"));
  for (const size_t each : {0U, 1U}) EXPECT_NE(error_report(result, each), "");
}

// In the second step the processes also agree on the order of gradients.
TEST(Faults, ACollectiveThatOneRankSkipsAfterTheFirstStepIsAnError) {
  if (rank_test::is_rank()) {
    return train(quick_options(), 5, [](Accelerator& accelerator, int step) {
      if (step == 2 && rank() == 0) accelerator.gather(torch::ones({1}));
    });
  }
  const auto result = rank_test::run({.num_ranks = 2});
  const std::string errors = result.ranks[0].err + result.ranks[1].err;
  EXPECT_TRUE(contains(errors, "can never complete"));
  EXPECT_TRUE(contains(errors, "in gather (exchange") || contains(errors, "rank 0 is gather"));
}

TEST(Faults, ARankThatFinishesEarlyIsNamed) {
  if (rank_test::is_rank()) return train(quick_options(), rank() == 0 ? 5 : 3);
  const auto result = rank_test::run({.num_ranks = 2});
  EXPECT_EQ(result.ranks[1].exit_code, 0);
  EXPECT_TRUE(contains(error_report(result, 0), "ank 1 has left the run"));
}

// --- Two machines ---------------------------------------------------------------------------------

// For Python tests, which start it with `accelerant launch`: two_machines_test.py may cut the link
// between the machines.
TEST(Faults, DISABLED_TrainingOnMachines) {
  auto options = quick_options();
  options.process_group.timeout = seconds(std::atoi(std::getenv("FAULTS_TIMEOUT")));
  const int steps = std::atoi(std::getenv("FAULTS_STEPS"));
  train(options, steps, [&](Accelerator& accelerator, int step) {
    const int machines = std::atoi(std::getenv("FAULTS_MACHINES"));
    if (accelerator.environment().num_machines != machines) throw std::runtime_error("not so many");
    if (step == 20 && accelerator.is_main_process()) std::cout << "under way" << std::endl;
    if (step < steps) return;
    const auto all = accelerant::dist::gather(accelerator.world(), torch::full({1}, rank() + 1));
    std::cout << "gathered " << all.numel() << " of sum " << all.sum().item<int64_t>() << std::endl;
  });
}

// --- Meeting --------------------------------------------------------------------------------------

TEST(Faults, APortInUseIsNamed) {
  const int other = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(other, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(other, 1), 0);
  ASSERT_EQ(getsockname(other, reinterpret_cast<sockaddr*>(&address), &size), 0);
  accelerant::dist::Environment environment;
  environment.num_processes = environment.local_num_processes = 2;
  environment.master_port = ntohs(address.sin_port);
  const auto text = whole_error_of([&] { accelerant::dist::World::join(environment); });
  EXPECT_TRUE(contains(text, "127.0.0.1:" + std::to_string(environment.master_port)));
  EXPECT_TRUE(contains(text, "MASTER_PORT"));
  close(other);
}

TEST(Faults, ARankThatNeverComesIsNamed) {
  if (rank_test::is_rank()) {
    auto options = quick_options();
    options.process_group.join_timeout = seconds(2);
    signal(SIGTERM, SIG_IGN);
    if (rank() == 1) std::exit(0);
    return train(options, 1);
  }
  const auto result = rank_test::run({.num_ranks = 2});
  const std::string error = error_report(result, 0);
  EXPECT_TRUE(contains(error, "Not all processes have joined"));
  EXPECT_TRUE(contains(error, "rank 1"));
}

}  // namespace
