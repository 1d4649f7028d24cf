#include "accelerant/core/failpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>

#include "support/expect_error.h"

namespace {

using accelerant::failpoint;
using accelerant::reload_failpoints;

class Failpoint : public testing::Test {
 protected:
  void SetUp() override { unsetenv("RANK"); }
  void TearDown() override {
    unsetenv("ACCELERANT_FAILPOINT");
    unsetenv("RANK");
    unsetenv("OMPI_COMM_WORLD_RANK");
    reload_failpoints();
  }
  static void set(const char* value) {
    setenv("ACCELERANT_FAILPOINT", value, 1);
    reload_failpoints();
  }
};

// Which of five visits to `place` throw, as five letters.
std::string visits(const char* place) {
  std::string seen;
  for (int visit = 0; visit < 5; ++visit) {
    try {
      failpoint(place);
      seen += '.';
    } catch (const accelerant::Error&) {
      seen += 'x';
    }
  }
  return seen;
}

TEST_F(Failpoint, DoesNothingWhereTheVariableIsUnsetOrNamesAnother) {
  failpoint("here");
  set("there:kill");
  failpoint("here");
}

TEST_F(Failpoint, ThrowNamesItselfOnce) {
  set("step.before:throw");
  EXPECT_TRUE(contains(error_of([] { failpoint("step.before"); }), "failpoint step.before"));
  EXPECT_EQ(visits("step.before"), ".....");
}

TEST_F(Failpoint, CountsHits) {
  set("here:throw@3");
  EXPECT_EQ(visits("here"), "..x..");
  set("here:throw@1,here:throw@4,there:throw");
  EXPECT_EQ(visits("here"), "x..x.");
}

TEST_F(Failpoint, KeepsToItsRank) {
  setenv("RANK", "1", 1);
  set("here:throw@2/rank=1,here:throw@3/rank=2");
  EXPECT_EQ(visits("here"), ".x...");
  unsetenv("RANK");
  set("here:throw/rank=0");
  EXPECT_EQ(visits("here"), ".....");
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  set("here:throw/rank=0");
  EXPECT_EQ(visits("here"), "x....");
}

TEST_F(Failpoint, SleepsEveryTime) {
  set("here:sleep=20");
  const auto start = std::chrono::steady_clock::now();
  failpoint("here");
  failpoint("here");
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(40));
}

TEST_F(Failpoint, EndsTheProcess) {
  set("here:kill");
  EXPECT_EXIT(failpoint("here"), testing::KilledBySignal(SIGKILL), "");
  set("here:exit@2");
  EXPECT_EXIT((failpoint("here"), failpoint("here")), testing::ExitedWithCode(3), "");
}

TEST_F(Failpoint, StopsOrHangsTheProcess) {
  for (const char* value : {"here:stop", "here:hang"}) {
    set(value);
    const pid_t child = fork();
    if (child == 0) {
      alarm(value == std::string("here:hang") ? 1 : 60);  // only the signal ends it
      failpoint("here");
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
    if (value == std::string("here:stop")) {
      EXPECT_TRUE(WIFSTOPPED(status));
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
    } else {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) << status;
    }
  }
}

TEST_F(Failpoint, RefusesWhatItCannotRead) {
  for (const char* value :
       {"here", "here:", ":kill", "here:explode", "here:kill@0", "here:kill@x",
        "here:kill/rank=", "here:kill/rank=-1", "here:sleep", "here:sleep=", "here:sleep=1x",
        "here:kill,", ",", "a:kill,,b:kill", "here:kill/rank=0@1"}) {
    setenv("ACCELERANT_FAILPOINT", value, 1);
    EXPECT_TRUE(contains(error_of(reload_failpoints), "ACCELERANT_FAILPOINT cannot be parsed"))
        << value;
    EXPECT_TRUE(contains(error_of([] { failpoint("any"); }), "cannot be parsed")) << value;
  }
}

}  // namespace
