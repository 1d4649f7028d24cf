// A holder of a lock that has been killed, but is not gone: one of its threads still waits for the
// disk. It can do no more than finish that call, so whoever wants the lock waits for it. The kernel
// cannot be made to do that on demand; here its files are played.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "accelerant/core/log.h"
#include "core/files.h"
#include "store/folder_lock.h"
#include "store/lock_holder.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::checkpoint;
using std::chrono::milliseconds;

struct Thread {
  char state = 'S';
  int flags = 0;
  std::string pending = "0000000000000000";
};

constexpr int kExiting = 0x404;  // PF_EXITING and another one
const std::string kKilled = "0000000000000100";
const std::string kInterrupted = "0000000000000002";

pid_t pid_of_nobody() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

class KilledHolder : public testing::Test {
 protected:
  void SetUp() override {
    before_ = lock_rules();
    lock_rules().proc = root_.path("proc");
    holder_.pid = pid_of_nobody();
    holder_.start = 4711;
    accelerant::set_log_handler(
        [this](accelerant::LogLevel, std::string_view text) { log_ += std::string(text) + "\n"; });
  }
  void TearDown() override {
    lock_rules() = before_;
    accelerant::set_log_handler({});
  }

  std::string process() const { return "proc/" + std::to_string(holder_.pid); }

  // The first thread is that of the process.
  void play(const std::vector<Thread>& threads) const {
    int id = 0;
    for (const Thread& thread : threads) {
      const std::string folder = process() + "/task/" + std::to_string(holder_.pid + id);
      accelerant::make_folders(root_.path(folder));
      const std::string stat = "1 (a) b) " + std::string(1, thread.state) + " 1 1 1 0 -1 " +
                               std::to_string(thread.flags) + " 0 0 0 0 0 0 0 0 20 0 " +
                               std::to_string(threads.size()) + " 0 4711 99 99\n";
      root_.write(folder + "/stat", stat);
      root_.write(folder + "/status", "Name:\ta\nThreads:\t2\nSigQ:\t0/1\nSigPnd:\t" +
                                          thread.pending + "\nShdPnd:\t0000000000000000\n");
      if (id++ == 0) root_.write(process() + "/stat", stat);
    }
  }
  Life life_with(const std::vector<Thread>& threads) const {
    play(threads);
    const Life life = life_of(holder_);
    vanish();
    return life;
  }
  void vanish() const { run_in_shell("rm -r '" + root_.path(process()) + "'"); }

  std::shared_ptr<FolderLock> acquire() const {
    return FolderLock::acquire(root_.path("p.lock"), "The project p");
  }

  TempFolder root_;
  LockHolder holder_ = this_process_as_holder();
  std::string log_;
  LockRules before_;
};

TEST_F(KilledHolder, IsEndingWhileItsThreadsWaitForTheDisk) {
  EXPECT_EQ(life_with({{.state = 'D', .pending = kKilled}}), Life::ending);
  EXPECT_EQ(life_with({{.state = 'R', .flags = kExiting}}), Life::ending);
  EXPECT_EQ(life_with({{.state = 'Z', .flags = kExiting}, {.state = 'D', .pending = kKilled}}),
            Life::ending);
  EXPECT_EQ(life_with({{.state = 'T', .pending = kKilled}}), Life::ending);
  EXPECT_EQ(life_with({{.state = 'Z', .flags = kExiting}}), Life::ended);
  EXPECT_EQ(life_of(holder_), Life::ended);
}

TEST_F(KilledHolder, IsNotOneOfWhichAThreadGoesOn) {
  EXPECT_EQ(life_with({{}}), Life::running);
  EXPECT_EQ(life_with({{.state = 'D'}, {}}), Life::running);
  EXPECT_EQ(life_with({{.state = 'S', .pending = kInterrupted}}), Life::running);
  EXPECT_EQ(life_with({{.state = 'T'}}), Life::stopped);
  // The first thread may end before the others.
  EXPECT_EQ(life_with({{.state = 'Z', .flags = kExiting}, {}}), Life::running);
  EXPECT_EQ(life_with({{.state = 'Z', .flags = kExiting}, {.state = 'D'}}), Life::running);
  EXPECT_EQ(life_with({{.flags = kExiting}, {}}), Life::running);
}

TEST_F(KilledHolder, IsWaitedFor) {
  root_.write("p.lock", to_text(holder_));
  play({{.state = 'Z', .flags = kExiting}, {.state = 'D', .pending = kKilled}});
  std::thread disk([this] {
    std::this_thread::sleep_for(milliseconds(200));
    vanish();
  });
  const auto begin = std::chrono::steady_clock::now();
  const auto lock = acquire();
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(190));
  disk.join();
  EXPECT_NO_THROW(lock->require_held());
  EXPECT_TRUE(contains(log_, "which has been killed. Waiting for its end"));
  EXPECT_TRUE(contains(log_, "which has ended"));
}

TEST_F(KilledHolder, KeepsTheLockIfItHangs) {
  lock_rules().renewal = milliseconds(20);
  lock_rules().lease = milliseconds(300);
  root_.write("p.lock", to_text(holder_));
  play({{.state = 'D', .pending = kKilled}});
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(contains(error_of([&] { acquire(); }),
                       "which has been killed but hangs in a call to the system"));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(300));
  EXPECT_EQ(accelerant::entries_of(root_.path()), (std::vector<std::string>{"p.lock", "proc"}));
}

// The kernel's own files are read in the same way.
TEST_F(KilledHolder, IsNoLivingProcess) {
  lock_rules().proc = "/proc";
  LockHolder parent = this_process_as_holder();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(life_of(parent) == Life::running ? 0 : 1);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
