#include "accelerant/core/detail/own_process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <thread>
#include <vector>

#include "core/atomic_file.h"
#include "core/preemption_signals.h"
#include "core/process_end.h"
#include "support/forked.h"
#include "support/temp_folder.h"

namespace {

using accelerant::detail::DeleteInOwnProcess;
using accelerant::detail::make_shared_for_process;
using accelerant::detail::OnePerProcess;
using accelerant::detail::OwnProcess;

struct Counted {
  explicit Counted(int& destroyed_objects) : destroyed(destroyed_objects) {}
  ~Counted() { ++destroyed; }
  int& destroyed;
};

TEST(OwnProcess, ObjectsOfTheParentAreNotDestroyedInAChild) {
  int destroyed = 0;
  const OwnProcess process;
  auto shared = make_shared_for_process<Counted>(destroyed);
  std::unique_ptr<Counted, DeleteInOwnProcess> unique(new Counted(destroyed));
  const pid_t child = fork();
  if (child == 0) {
    const bool knows = !process.is_this_one();
    shared.reset();
    unique.reset();
    const bool kept = destroyed == 0;
    { const auto own = make_shared_for_process<Counted>(destroyed); }
    const bool deletes_its_own = destroyed == 1;
    // A child of the child.
    const OwnProcess second;
    const pid_t grandchild = fork();
    if (grandchild == 0) _exit(second.is_this_one() || process.is_this_one() ? 1 : 0);
    const bool is_passed_on = forked::end_of(grandchild) == "exit 0" && second.is_this_one();
    _exit(knows && kept && deletes_its_own && is_passed_on ? 0 : 1);
  }
  EXPECT_EQ(forked::end_of(child), "exit 0");
  EXPECT_TRUE(process.is_this_one());
  shared.reset();
  unique.reset();
  EXPECT_EQ(destroyed, 2);
}

TEST(OwnProcess, AChildHasItsOwnStatics) {
  static OnePerProcess<int> number;
  number.get() = 5;
  const pid_t child = fork();
  if (child == 0) {
    const bool is_new = number.get() == 0;
    number.get() = 6;
    _exit(is_new && number.get() == 6 ? 0 : 1);
  }
  EXPECT_EQ(forked::end_of(child), "exit 0");
  EXPECT_EQ(number.get(), 5);
}

TEST(OwnProcess, ThreadsAgreeOnTheOneOfTheirProcess) {
  for (int round = 0; round < 50; ++round) {
    OnePerProcess<int> number;
    std::vector<int*> seen(4);
    std::vector<std::thread> threads;
    for (int*& each : seen) threads.emplace_back([&] { each = &number.get(); });
    for (std::thread& thread : threads) thread.join();
    for (const int* each : seen) EXPECT_EQ(each, seen[0]);
    accelerant::detail::never_destroy(seen[0]);
  }
}

TEST(OwnProcess, UnfinishedFilesBelongToTheParent) {
  const TempFolder folder;
  accelerant::format::AtomicFile file(folder.path("file"));
  forked::as_main([&] {
    const pid_t child = fork();
    if (child == 0) {
      file.~AtomicFile();
      _exit(0);
    }
    EXPECT_EQ(forked::end_of(child), "exit 0");
  });
  file.commit();
  EXPECT_EQ(TempFolder::content_of(folder.path("file")), "");
  EXPECT_EQ(access(folder.path("file").c_str(), F_OK), 0);
}

// A work that waits for a thread that the child does not have.
TEST(OwnProcess, WhatIsDoneBeforeTheEndIsTheParents) {
  forked::as_main([] {
    const accelerant::BeforeEnd before([] {
      while (true) pause();
    });
    const accelerant::EndHandler handler([](accelerant::Ending) { _exit(9); });
    forked::expect_children_to_end();
  });
}

// The other thread holds the lock of the works for as long as it likes.
TEST(OwnProcessDeathTest, AChildOfAProcessThatIsEndingEnds) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto end = [] {
    int ready[2];
    if (pipe(ready) != 0) _exit(1);
    const accelerant::BeforeEnd before([&] {
      if (write(ready[1], "x", 1) != 1) _exit(1);
      while (true) pause();
    });
    std::thread([] { forked::throw_uncaught("the end"); }).detach();
    char byte = 0;
    if (read(ready[0], &byte, 1) != 1) _exit(1);
    forked::as_main([&] {
      const accelerant::BeforeEnd* const held = &before;
      const pid_t child = fork();
      if (child == 0) {
        held->~BeforeEnd();
        throw forked::ReturnFromMain{7};
      }
      _exit(forked::end_of(child) == "exit 7" ? 0 : 1);
    });
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(0), "");
}

// A child may itself be a training process: the program forks before it trains.
TEST(OwnProcess, AChildWatchesItsOwnSignals) {
  const accelerant::PreemptionSignals signals({SIGUSR1});
  raise(SIGUSR1);
  const pid_t child = fork();
  if (child == 0) {
    bool is_good = false;
    {
      const accelerant::PreemptionSignals own({SIGUSR1});
      const bool is_new = accelerant::PreemptionSignals::received() == 0;
      raise(SIGUSR1);
      is_good = is_new && accelerant::PreemptionSignals::received() == SIGUSR1;
    }
    if (!is_good) _exit(1);
    raise(SIGUSR1);  // the default action again
    _exit(2);
  }
  EXPECT_EQ(forked::end_of(child), "signal " + std::to_string(SIGUSR1));
  EXPECT_EQ(accelerant::PreemptionSignals::received(), SIGUSR1);
}

}  // namespace
