#include "store/folder_lock.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "accelerant/core/failpoint.h"
#include "accelerant/core/log.h"
#include "core/fd.h"
#include "core/files.h"
#include "store/system_calls.h"
#include "support/expect_error.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"
#include "support/timeout_scale.h"

namespace {

using namespace accelerant::checkpoint;
using accelerant::entries_of;
using accelerant::Fd;
using std::chrono::milliseconds;
using Names = std::vector<std::string>;

struct Pipe {
  Pipe() {
    std::array<int, 2> ends;
    if (::pipe(ends.data()) != 0) std::abort();
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  Fd read_end;
  Fd write_end;
};

// A forked process. It tells one letter, and ends when it is told to.
class Process {
 public:
  using Tell = std::function<void(char)>;
  using AwaitEnd = std::function<void()>;

  explicit Process(const std::function<void(const Tell&, const AwaitEnd&)>& body) {
    pid_ = ::fork();
    if (pid_ != 0) {
      told_.write_end.reset();
      end_.read_end.reset();
      return;
    }
    told_.read_end.reset();
    end_.write_end.reset();
    body(
        [&](char letter) {
          if (::write(told_.write_end.get(), &letter, 1) != 1) ::_exit(9);
        },
        [&] {
          char letter = 0;
          if (::read(end_.read_end.get(), &letter, 1) < 0) ::_exit(9);
        });
    ::_exit(0);
  }
  ~Process() {
    if (pid_ > 0) end_by(SIGKILL);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }

  // The next letter; '-' if it ended without one.
  char heard() const {
    char letter = '-';
    return ::read(told_.read_end.get(), &letter, 1) == 1 ? letter : '-';
  }

  void send(int signal) const {
    ::kill(pid_, signal);
    if (signal == SIGSTOP) ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void await_stop() const { ::waitpid(pid_, nullptr, WUNTRACED); }

  // Continues it, lets it end and returns its exit code.
  int finish() {
    ::kill(pid_, SIGCONT);
    end_.write_end.reset();
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  void end_by(int signal) {
    ::kill(pid_, signal);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
  Pipe told_;
  Pipe end_;
};

void fail_at(const std::string& failpoints) {
  setenv("ACCELERANT_FAILPOINT", failpoints.c_str(), 1);
  accelerant::reload_failpoints();
}

class Lock : public testing::Test {
 protected:
  void SetUp() override {
    before_ = lock_rules();
    accelerant::set_log_handler(
        [this](accelerant::LogLevel, std::string_view text) { log_ += std::string(text) + "\n"; });
  }
  void TearDown() override {
    lock_rules() = before_;
    accelerant::set_log_handler({});
    system_calls::can_link() = true;
    fail_at("");
  }

  std::shared_ptr<FolderLock> acquire() const {
    return FolderLock::acquire(path_, "The project p");
  }
  std::string refusal() const {
    return error_of([&] { acquire(); });
  }

  static bool is_lost_to_another(FolderLock& lock) {
    try {
      lock.require_held();
      return false;
    } catch (const accelerant::Error&) {
      return true;
    }
  }

  // Takes the lock: 'T', or 'R' if it is refused, 'E' for another error; holds it until told.
  void take_and_hold(const Process::Tell& tell, const Process::AwaitEnd& await_end) const {
    bool is_lost = false;
    try {
      const auto lock = acquire();
      tell('T');
      await_end();
      is_lost = is_lost_to_another(*lock);
    } catch (const LockRefused&) {
      tell('R');
    } catch (const std::exception&) {
      tell('E');
    }
    if (is_lost) ::_exit(4);
  }
  auto holder() const {
    return [this](const auto& tell, const auto& await_end) { take_and_hold(tell, await_end); };
  }
  // The same on another machine.
  auto far_holder(const std::string& failpoints = "") const {
    return [this, failpoints](const auto& tell, const auto& await_end) {
      lock_rules().boot = "another";
      lock_rules().host = "node17";
      if (!failpoints.empty()) fail_at(failpoints);
      take_and_hold(tell, await_end);
    };
  }

  static void play_quickly() {
    lock_rules().renewal = milliseconds(20);
    // Many renewals, because a busy machine delays some of them.
    lock_rules().lease = milliseconds(static_cast<int>(1000 * timeout_scale()));
  }

  void write_lock(const LockHolder& holder) const { root_.write("p.lock", to_text(holder)); }
  Names entries() const { return entries_of(root_.path()); }

  TempFolder root_;
  std::string path_ = root_.path("p.lock");
  std::string log_;
  LockRules before_;
};

TEST_F(Lock, IsAFileWhileItIsHeld) {
  {
    const auto lock = acquire();
    EXPECT_EQ(entries(), Names{"p.lock"});
    const auto holder = parse_holder(TempFolder::content_of(path_));
    ASSERT_TRUE(holder);
    EXPECT_EQ(holder->id, lock->id());
    EXPECT_EQ(holder->pid, getpid());
    EXPECT_GT(holder->start, 0U);
    EXPECT_EQ(holder->boot.size(), 36U);
    EXPECT_TRUE(contains(holder->pid_namespace, "pid:["));
    EXPECT_NO_THROW(lock->require_held());
  }
  EXPECT_EQ(entries(), Names{});
  EXPECT_EQ(log_, "");
}

TEST_F(Lock, IsSharedWithinAProcess) {
  const auto one = acquire();
  auto other = FolderLock::acquire(root_.path() + "/./p.lock", "The same project");
  EXPECT_EQ(one, other);
  other.reset();
  EXPECT_EQ(entries(), Names{"p.lock"});
}

TEST_F(Lock, HasANewIdEachTime) {
  const std::string first = acquire()->id();
  EXPECT_NE(acquire()->id(), first);
}

TEST_F(Lock, FoldersAboveAreMade) {
  const auto lock = FolderLock::acquire(root_.path("a/b/p.lock"), "p");
  EXPECT_EQ(entries_of(root_.path("a/b")), Names{"p.lock"});
}

TEST_F(Lock, OfALivingProcessIsRefused) {
  Process other(holder());
  ASSERT_EQ(other.heard(), 'T');
  const std::string text = refusal();
  EXPECT_TRUE(contains(text, "The project p is in use: expected one run at a time, got process " +
                                 std::to_string(other.pid()) + " on "));
  EXPECT_TRUE(contains(text, ", since 20"));
  EXPECT_FALSE(contains(text, "stopped"));
  other.send(SIGSTOP);
  EXPECT_TRUE(contains(refusal(), "which is stopped but may continue"));
  EXPECT_EQ(entries(), Names{"p.lock"});
  EXPECT_EQ(other.finish(), 0);
  EXPECT_EQ(entries(), Names{});
}

TEST_F(Lock, OfADeadProcessIsTakenOverAtOnce) {
  Process other(holder());
  ASSERT_EQ(other.heard(), 'T');
  other.end_by(SIGKILL);
  EXPECT_EQ(entries(), Names{"p.lock"});
  const auto begin = std::chrono::steady_clock::now();
  const auto lock = acquire();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_NO_THROW(lock->require_held());
  EXPECT_TRUE(contains(log_, "The project p is taken over from process "));
  EXPECT_TRUE(contains(log_, "which has ended"));
  EXPECT_EQ(entries(), Names{"p.lock"});
}

TEST_F(Lock, OfAProcessThatNobodyHasWaitedForIsTakenOver) {
  Process other(holder());
  ASSERT_EQ(other.heard(), 'T');
  ::kill(other.pid(), SIGKILL);
  siginfo_t info = {};
  ::waitid(P_PID, static_cast<id_t>(other.pid()), &info, WEXITED | WNOWAIT);
  EXPECT_NO_THROW(acquire());
}

TEST_F(Lock, AnotherProcessWithTheSameIdIsNotTheHolder) {
  LockHolder old = this_process_as_holder();
  old.pid = getppid();
  old.start = 1;
  write_lock(old);
  EXPECT_NO_THROW(acquire());
}

TEST_F(Lock, SurvivesNoExec) {
  write_lock(this_process_as_holder());  // this program, before it was replaced
  EXPECT_NO_THROW(acquire());
}

TEST_F(Lock, AForkedChildDoesNotHoldIt) {
  const auto lock = acquire();
  Process child([&](const auto& tell, const auto&) {
    auto copy = lock;
    tell(contains(error_of([&] { copy->require_held(); }), "forked from process") ? 'y' : 'n');
    try {
      acquire();
      tell('n');
    } catch (const LockRefused&) {
      tell('y');
    }
    copy->release();
    copy->~FolderLock();  // as at the end of main
  });
  EXPECT_EQ(child.heard(), 'y');
  EXPECT_EQ(child.heard(), 'y');
  EXPECT_EQ(child.finish(), 0);
  EXPECT_NO_THROW(lock->require_held());
  EXPECT_EQ(entries(), Names{"p.lock"});
}

TEST_F(Lock, IsMadeAgainIfSomebodyRemovesIt) {
  const auto lock = FolderLock::acquire(root_.path("p/p.lock"), "p");
  run_in_shell("rm -r '" + root_.path("p") + "'");
  EXPECT_NO_THROW(lock->require_held());
  EXPECT_EQ(entries_of(root_.path("p")), Names{"p.lock"});
}

TEST_F(Lock, CannotBeUsedAfterItsRelease) {
  const auto lock = acquire();
  lock->release();
  lock->release();
  EXPECT_EQ(entries(), Names{});
  EXPECT_THROW(lock->require_held(), accelerant::Error);
}

TEST_F(Lock, AFailureOfTheDiskIsNoRefusal) {
  root_.write("file", "");
  EXPECT_THROW(FolderLock::acquire(root_.path("file/p.lock"), "p"), accelerant::SystemError);
}

// --- Holders that cannot be looked at ------------------------------------------------------------

TEST_F(Lock, OfAnotherMachineIsRefusedWhileItIsRenewed) {
  play_quickly();
  lock_rules().lease = std::chrono::seconds(60);
  Process other(far_holder());
  ASSERT_EQ(other.heard(), 'T');
  const auto begin = std::chrono::steady_clock::now();
  const std::string text = refusal();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_TRUE(contains(text, " on node17, since "));
  EXPECT_TRUE(contains(text, "which has just given a sign of life"));
  EXPECT_TRUE(contains(log_, "Waiting up to 60 seconds for a sign of life"));
  EXPECT_EQ(other.finish(), 0);
}

TEST_F(Lock, OfAnotherMachineIsTakenOverAfterALease) {
  play_quickly();
  LockHolder far = this_process_as_holder();
  far.boot = "another";
  write_lock(far);
  const auto begin = std::chrono::steady_clock::now();
  const auto lock = acquire();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(200));
  EXPECT_TRUE(contains(log_, "which has given no sign of life for 1 second"));
}

TEST_F(Lock, OfAnotherContainerCountsAsThatOfAnotherMachine) {
  play_quickly();
  LockHolder far = this_process_as_holder();
  far.pid_namespace = "pid:[1]";
  far.start = 1;  // would have ended, if its id meant anything here
  write_lock(far);
  const auto lock = acquire();
  EXPECT_TRUE(contains(log_, "no sign of life"));
}

// As in `unshare --pid --fork` without --mount-proc: /proc shows strangers under the ids in there.
TEST_F(Lock, OfALivingProcessIsRefusedAlsoWithTheProcOfAnotherContainer) {
  play_quickly();
  lock_rules().lease = std::chrono::seconds(60);
  Process outside([&](const auto& tell, const auto&) {
    if (::unshare(CLONE_NEWPID) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
      return tell('S');
    }
    const Process inside([&](const auto& tell_result, const auto&) {  // the first one in there
      Process other(holder());
      const bool is_taken = other.heard() == 'T';
      const bool is_refused = contains(refusal(), "which has just given a sign of life");
      tell_result(is_taken && is_refused && other.finish() == 0 ? 'y' : 'n');
    });
    tell(inside.heard());
  });
  const char result = outside.heard();
  if (result == 'S') GTEST_SKIP() << "not allowed on this machine";
  EXPECT_EQ(result, 'y');
  EXPECT_EQ(outside.finish(), 0);
  EXPECT_EQ(entries(), Names{});
}

TEST_F(Lock, AnOldOneOfAnotherMachineIsTakenOverAtOnce) {
  LockHolder far = this_process_as_holder();
  far.boot = "another";
  write_lock(far);
  run_in_shell("touch -d '10 minutes ago' '" + path_ + "'");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NO_THROW(acquire());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST_F(Lock, ADamagedOneCountsAsThatOfAnotherMachine) {
  play_quickly();
  for (const std::string& text : {std::string(), std::string("{\"format\": \"acc"),
                                  std::string("{\"id\": \"../../../etc\"}")}) {
    root_.write("p.lock", text);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_NO_THROW(acquire());
    EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(200));
    EXPECT_EQ(entries(), Names{});
  }
}

TEST_F(Lock, ASuspendedHolderNoticesThatItHasLostIt) {
  play_quickly();
  Process other(far_holder());
  ASSERT_EQ(other.heard(), 'T');
  other.send(SIGSTOP);
  const auto lock = acquire();
  EXPECT_EQ(other.finish(), 4);
  EXPECT_NO_THROW(lock->require_held());
  EXPECT_EQ(entries(), Names{"p.lock"});
}

TEST_F(Lock, ASuspendedHolderNoticesAlsoIfTheOtherOneHasEnded) {
  play_quickly();
  Process other(far_holder());
  ASSERT_EQ(other.heard(), 'T');
  other.send(SIGSTOP);
  acquire();
  EXPECT_EQ(entries(), Names{});
  EXPECT_EQ(other.finish(), 4);
  EXPECT_EQ(entries(), Names{});
}

TEST_F(Lock, ASuspendedContenderDoesNotReplaceTheNextHolder) {
  for (const char* place : {"lock.candidate", "lock.successor", "lock.before_replace"}) {
    SCOPED_TRACE(place);
    play_quickly();
    write_lock([] {
      LockHolder dead = this_process_as_holder();
      dead.pid = 1 << 30;
      dead.boot = "another";
      return dead;
    }());
    run_in_shell("touch -d '10 minutes ago' '" + path_ + "'");
    Process contender(far_holder(std::string(place) + ":stop"));
    contender.await_stop();
    const auto lock = acquire();
    ::kill(contender.pid(), SIGCONT);
    // This process cannot look at the holder either, but the holder renews its lock.
    EXPECT_EQ(contender.heard(), 'R');
    EXPECT_EQ(contender.finish(), 0);
    EXPECT_NO_THROW(lock->require_held());
    EXPECT_EQ(entries(), Names{"p.lock"});
  }
}

// --- Contention ----------------------------------------------------------------------------------

constexpr const char* kPlaces[] = {"lock.candidate", "lock.successor", "lock.before_replace",
                                   "lock.taken"};

TEST_F(Lock, WhoeverDiesWhileTakingItOverIsReplaced) {
  for (const std::string first : kPlaces) {
    for (const std::string second : kPlaces) {
      SCOPED_TRACE(first + " " + second);
      LockHolder dead = this_process_as_holder();
      dead.start = 1;
      dead.pid = getppid();
      write_lock(dead);
      for (const std::string& place : {first, second}) {
        Process contender([&](const auto& tell, const auto& await_end) {
          fail_at(place + ":kill");
          take_and_hold(tell, await_end);
        });
        EXPECT_EQ(contender.heard(), '-');
      }
      const auto lock = acquire();
      EXPECT_NO_THROW(lock->require_held());
      EXPECT_EQ(entries(), Names{"p.lock"});
    }
  }
}

class Contention : public Lock, public testing::WithParamInterface<bool> {};

TEST_P(Contention, ExactlyOneGetsIt) {
  system_calls::can_link() = GetParam();
  if (!GetParam()) {  // a file without content counts as that of another machine
    lock_rules().renewal = milliseconds(20);
    lock_rules().lease = std::chrono::seconds(5);
  }
  std::mt19937 random(random_seed());
  for (int round = 0; round < 20; ++round) {
    if (round % 2 == 0) {
      LockHolder dead = this_process_as_holder();
      dead.start = 1;
      dead.pid = getppid();
      write_lock(dead);
    }
    Pipe start;
    std::vector<std::unique_ptr<Process>> contenders;
    for (int i = 0; i < 10; ++i) {
      std::string failpoints;
      for (const char* place : kPlaces) {
        if (random() % 3 == 0)
          failpoints += std::string(place) + ":sleep=" + std::to_string(random() % 20) + ",";
      }
      failpoints += "none:sleep=1";
      contenders.push_back(std::make_unique<Process>([&](const auto& tell, const auto& await_end) {
        fail_at(failpoints);
        start.write_end.reset();
        char letter = 0;
        if (::read(start.read_end.get(), &letter, 1) < 0) ::_exit(9);
        take_and_hold(tell, await_end);
      }));
    }
    start.write_end.reset();
    std::string heard;
    for (const auto& contender : contenders) heard += contender->heard();
    EXPECT_EQ(std::ranges::count(heard, 'T'), 1) << heard;
    EXPECT_EQ(std::ranges::count(heard, 'R'), 9) << heard;
    for (const auto& contender : contenders) EXPECT_EQ(contender->finish(), 0);
    EXPECT_EQ(entries(), Names{});
  }
}

INSTANTIATE_TEST_SUITE_P(Disk, Contention, testing::Values(true, false), [](const auto& links) {
  return std::string(links.param ? "WithLinks" : "WithoutLinks");
});

}  // namespace
