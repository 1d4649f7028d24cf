#include "launch/launcher.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>

#include "launch/start_error.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

// These tests are about the call; launch/*_test.py test what a launch does, through the command.

namespace {

using accelerant::launch::launch;
using accelerant::launch::LaunchOptions;
using accelerant::launch::LaunchResult;
using accelerant::launch::StartError;

LaunchResult run_quietly(LaunchOptions options) {
  options.quiet = true;
  return launch(options);
}

TEST(Launcher, TellsHowRanksEnded) {
  const auto result = run_quietly({.command = {"sh", "-c", "[ $RANK = 1 ] && exit 3; sleep 1000"},
                                   .num_processes = 2,
                                   .environment = {{"MINE", "yes"}}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.restarts, 0);
  ASSERT_EQ(result.ranks.size(), 2U);
  EXPECT_TRUE(result.ranks[0].stopped);
  EXPECT_TRUE(result.ranks[1].failed());
  EXPECT_TRUE(contains(result.report, "rank 1 of 2 failed: exit code 3"));
}

TEST(Launcher, SuccessHasNoReport) {
  const auto result =
      run_quietly({.command = {"sh", "-c", "[ $MINE = yes ]"}, .environment = {{"MINE", "yes"}}});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.report, "");
}

TEST(Launcher, CountsRestarts) {
  const auto result = run_quietly(
      {.command = {"sh", "-c", "[ $TORCHELASTIC_RESTART_COUNT = 2 ]"}, .max_restarts = 5});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.restarts, 2);
}

TEST(Launcher, TellsOnceThatRanksAreStillRunning) {
  // Ranks read what the launcher said from its standard error, which is a file here.
  const std::string script = R"(
    echo $$ > $FOLDER/$RANK
    [ $RANK = 1 ] && { until [ -s $FOLDER/0 ]; do sleep 0.01; done; exit 0; }
    until grep -q 'still running' /proc/$PPID/fd/2; do sleep 0.01; done
    [ $RANK = 0 ] && exit 0
    while [ -e /proc/$(cat $FOLDER/0) ]; do sleep 0.01; done
    sleep 0.1)";
  const TempFolder folder;
  testing::internal::CaptureStderr();
  const auto result = launch({.command = {"sh", "-c", script},
                              .num_processes = 3,
                              .environment = {{"FOLDER", folder.path()}},
                              .notice_after = std::chrono::milliseconds(20)});
  EXPECT_EQ(
      testing::internal::GetCapturedStderr(),
      "[accelerant] rank 1 ended (exit code 0) 0.02 s ago; ranks 0 and 2 are still running\n");
  EXPECT_EQ(result.exit_code, 0);
}

TEST(Launcher, LeavesTheProcessAsItWas) {
  sigset_t before;
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  run_quietly({.command = {"sh", "-c", "sleep 1000 & exit 1"}, .num_processes = 2});
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  }
  int is_subreaper = -1;
  prctl(PR_GET_CHILD_SUBREAPER, &is_subreaper);
  EXPECT_EQ(is_subreaper, 0);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);  // no child is left
  EXPECT_EQ(errno, ECHILD);
}

TEST(Launcher, RefusesBadOptions) {
  const auto refusal = [](LaunchOptions options) { return error_of([&] { launch(options); }); };
  EXPECT_TRUE(contains(refusal({}), "there is no program to launch"));
  EXPECT_TRUE(contains(refusal({.command = {"true"}, .num_processes = 0}), "at least 1"));
  EXPECT_TRUE(contains(refusal({.command = {"true"}, .num_machines = 2}), "machine_rank"));
  EXPECT_TRUE(contains(refusal({.command = {"true"}, .tee = "9"}), "tee: expected 0"));
  EXPECT_TRUE(contains(refusal({.command = {"true"}, .notice_after = std::chrono::seconds(-1)}),
                       "notice_after: expected seconds, 0 or more"));
  EXPECT_THROW(launch({.command = {"no-such-program"}}), StartError);
}

TEST(Launcher, StandaloneIgnoresMachines) {
  const auto result = run_quietly({.command = {"sh", "-c", "[ $MASTER_ADDR = 127.0.0.1 ]"},
                                   .num_machines = 4,
                                   .main_process_ip = "10.0.0.1",
                                   .standalone = true});
  EXPECT_EQ(result.exit_code, 0);
}

}  // namespace
