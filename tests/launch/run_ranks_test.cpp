#include "accelerant/launch/debug_launcher.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "launch/start_error.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using accelerant::launch::run_ranks;
using accelerant::launch::RunRanksOptions;
using accelerant::launch::StartError;
using accelerant::launch::Stream;

RunRanksOptions shell(const std::string& script, int64_t num_processes = 2) {
  return {.command = {"sh", "-c", script}, .num_processes = num_processes};
}

TEST(RunRanks, GivesEveryRankItsPlaceAndKeepsItsOutput) {
  const auto run =
      run_ranks(shell("echo $RANK of $WORLD_SIZE at $MASTER_ADDR; echo $LOCAL_RANK >&2", 3));
  EXPECT_TRUE(run.succeeded()) << run.report;
  ASSERT_EQ(run.ranks.size(), 3U);
  for (size_t rank = 0; rank < 3; ++rank) {
    const std::string number = std::to_string(rank);
    EXPECT_EQ(run.ranks[rank].out, number + " of 3 at 127.0.0.1\n");
    EXPECT_EQ(run.ranks[rank].err, number + "\n");
    EXPECT_EQ(run.ranks[rank].exit_code, 0);
  }
}

TEST(RunRanks, KeepsNcclOnThisMachineUnlessAskedOtherwise) {
  unsetenv("NCCL_SOCKET_IFNAME");
  unsetenv("NCCL_SOCKET_FAMILY");
  unsetenv("NCCL_COMM_ID");
  RunRanksOptions options = shell("echo $NCCL_SOCKET_IFNAME", 1);
  EXPECT_EQ(run_ranks(options).ranks[0].out, "=lo\n");
  options.environment = {{"NCCL_SOCKET_IFNAME", "eth7"}};
  EXPECT_EQ(run_ranks(options).ranks[0].out, "eth7\n");
}

TEST(RunRanks, StopsTheOthersWhenOneFails) {
  const auto run = run_ranks(shell("[ $RANK = 1 ] && { echo why >&2; exit 3; }; sleep 1000", 3));
  EXPECT_TRUE(run.ranks[1].failed());
  EXPECT_EQ(run.ranks[1].exit_code, 3);
  for (const size_t other : {0U, 2U}) {
    EXPECT_TRUE(run.ranks[other].stopped);
    EXPECT_EQ(run.ranks[other].signal, SIGTERM);
    EXPECT_FALSE(run.ranks[other].failed());
  }
  EXPECT_TRUE(contains(run.report, "rank 1 of 3 failed: exit code 3; 2 other ranks were stopped"));
  EXPECT_TRUE(contains(run.report, "err: why"));
}

TEST(RunRanks, KnowsSignals) {
  const auto run = run_ranks(shell("kill -SEGV $$", 1));
  EXPECT_EQ(run.ranks[0].signal, SIGSEGV);
  EXPECT_EQ(run.ranks[0].exit_code, 139);
  EXPECT_TRUE(contains(run.report, "rank 0 of 1 failed: SIGSEGV (exit code 139)"));
}

TEST(RunRanks, KillsWhatDoesNotStop) {
  const TempFolder folder;
  auto options = shell(R"(
    if [ $RANK = 0 ]; then while [ ! -e $MARK ]; do sleep 0.01; done; exit 1; fi
    trap '' TERM; touch $MARK; while :; do sleep 0.1; done)");
  options.environment = {{"MARK", folder.path("mark")}};
  options.grace = std::chrono::milliseconds(100);
  const auto run = run_ranks(options);
  EXPECT_EQ(run.ranks[1].signal, SIGKILL);
  EXPECT_TRUE(run.ranks[1].stopped);
}

TEST(RunRanks, ResumesStoppedRanksToEndThem) {
  auto options = shell("[ $RANK = 0 ] && kill -STOP $$; exit 5");
  options.grace = std::chrono::seconds(60);
  const auto run = run_ranks(options);
  EXPECT_EQ(run.ranks[0].signal, SIGTERM);
  EXPECT_EQ(run.ranks[1].exit_code, 5);
}

TEST(RunRanks, HasADeadline) {
  auto options = shell("echo waiting; sleep 1000");
  options.timeout = std::chrono::milliseconds(200);
  auto run = run_ranks(options);
  EXPECT_TRUE(contains(run.report, "did not end within 0.2 s"));
  // On a busy machine it may take longer until the ranks wait.
  for (int seconds = 1; seconds < 100 && !contains(run.report, "out: waiting"); seconds *= 2) {
    options.timeout = std::chrono::seconds(seconds);
    run = run_ranks(options);
  }
  EXPECT_TRUE(run.timed_out);
  EXPECT_FALSE(run.succeeded());
  EXPECT_TRUE(contains(run.report, "out: waiting"));
  EXPECT_EQ(run.ranks[1].signal, SIGKILL);
}

TEST(RunRanks, EndsWithItsRanksNotWithTheirDaemons) {
  // The daemon holds the pipe open and belongs to the rank's process group.
  const auto run = run_ranks(shell("sleep 1000 & echo $!", 1));
  EXPECT_TRUE(run.succeeded()) << run.report;
  const pid_t daemon = std::stoi(run.ranks[0].out);
  const auto is_running = [&] {
    return contains(TempFolder::content_of("/proc/" + std::to_string(daemon) + "/cmdline"),
                    "sleep");
  };
  for (int i = 0; i < 1000 && is_running(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_FALSE(is_running());
}

TEST(RunRanks, KeepsAnyBytesAndMuchOutput) {
  const auto run = run_ranks(
      shell("printf 'a\\0b\\377'; head -c 3000000 /dev/zero | tr '\\0' x >&2; printf end >&2", 2));
  EXPECT_TRUE(run.succeeded()) << run.report;
  for (const auto& rank : run.ranks) {
    EXPECT_EQ(rank.out, std::string("a\0b\377", 4));
    EXPECT_EQ(rank.err.size(), 3000003U);
    EXPECT_TRUE(rank.err.ends_with("xend"));
  }
}

TEST(RunRanks, PassesOutputOnAsItComes) {
  auto options = shell("echo $RANK; echo error >&2", 2);
  std::vector<std::string> out(2);
  std::string err;
  options.on_output = [&](int64_t rank, Stream stream, std::string_view bytes) {
    (stream == Stream::out ? out[static_cast<size_t>(rank)] : err) += bytes;
  };
  EXPECT_TRUE(run_ranks(options).succeeded());
  EXPECT_EQ(out, (std::vector<std::string>{"0\n", "1\n"}));
  EXPECT_EQ(err, "error\nerror\n");
}

TEST(RunRanks, TakesVariables) {
  auto options = shell("echo $MINE $OMP_NUM_THREADS", 1);
  options.environment = {{"MINE", "yes"}, {"OMP_NUM_THREADS", "7"}};
  EXPECT_EQ(run_ranks(options).ranks[0].out, "yes 7\n");
}

TEST(RunRanks, NamesTheEarliestErrorAsTheCause) {
  // Rank 0 ends first, but rank 1 had its error earlier.
  const std::string script = R"(
    report() { echo "{\"message\": {\"message\": \"$1\", \"extraInfo\": {\"timestamp\": \"$2\",
               \"time\": $2.5}}}" > $TORCHELASTIC_ERROR_FILE; }
    if [ $RANK = 1 ]; then report "the cause" 100; trap '' TERM; touch $MARK; sleep 0.3; exit 9
    else while [ ! -e $MARK ]; do sleep 0.01; done; report "lost rank 1" 200; exit 1; fi)";
  const TempFolder folder;
  auto options = shell(script);
  options.environment = {{"MARK", folder.path("mark")}};
  const auto run = run_ranks(options);
  EXPECT_TRUE(run.report.starts_with("rank 1 of 2 failed")) << run.report;
  EXPECT_TRUE(contains(run.report, "error: the cause"));
}

TEST(RunRanks, ReportsAnErrorOnce) {
  const std::string script = R"(
    echo '{"message": {"message": "bad batch", "extraInfo": {"timestamp": "100"}}}' \
      > $TORCHELASTIC_ERROR_FILE
    echo loading >&2; echo 'terminated: bad batch' >&2; exit 1)";
  const auto run = run_ranks(shell(script, 1));
  EXPECT_EQ(run.report,
            "rank 0 of 1 failed: exit code 1\n--- rank 0: exit code 1\n"
            "err: loading\nerror: bad batch\n");
  EXPECT_EQ(run.ranks[0].err, "loading\nterminated: bad batch\n");
}

TEST(RunRanks, RefusesWhatCannotBeStarted) {
  const auto refusal = [](std::vector<std::string> command) {
    try {
      run_ranks({.command = std::move(command)});
    } catch (const StartError& error) {
      return std::to_string(error.exit_code()) + " " + error.what();
    }
    return std::string("started");
  };
  const TempFolder folder;
  const std::string plain = folder.write("plain", "no program");
  EXPECT_TRUE(contains(refusal({"no-such-program"}), "127 there is no program no-such-program"));
  EXPECT_TRUE(contains(refusal({"./no-such"}), "127 there is no program ./no-such"));
  EXPECT_TRUE(contains(refusal({plain}), "126"));
  EXPECT_TRUE(contains(refusal({folder.path()}), "126"));
  run_in_shell("chmod +x '" + plain + "'");
  EXPECT_TRUE(contains(refusal({plain}), "a script needs a first line"));
  EXPECT_TRUE(contains(error_of([] { run_ranks({}); }), "the command is empty"));
  EXPECT_TRUE(contains(error_of([] { run_ranks({.command = {"true"}, .num_processes = 0}); }),
                       "at least 1"));
}

}  // namespace
