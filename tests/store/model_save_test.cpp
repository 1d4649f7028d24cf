// Several saves to one folder: at once, one after another that was killed, and one that was suspended
// while another process took its place. Whatever happens, the folder holds one whole model.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "accelerant/core/failpoint.h"
#include "accelerant/core/log.h"
#include "core/files.h"
#include "store/folder_lock.h"
#include "store/sample_model.h"
#include "store/system_calls.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::checkpoint;
using namespace sample_model;
using accelerant::entries_of;

// The files of a model without leftovers.
Names files_of(Names shards) {
  if (shards.size() > 1) shards.push_back("model.safetensors.index.json");
  shards.push_back(kModelChecksumsName);
  std::ranges::sort(shards);
  return shards;
}

int value_of(const std::string& folder) { return value_in(open_checked_model(folder, 1)); }

enum Code { kDone, kRefused, kLost, kFailed };

// A forked process that saves, unless something stops it. It is killed at the end of its scope.
class Saver {
 public:
  Saver(
      const std::string& folder, const Names& shards, unsigned char value,
      const std::string& failpoint, const std::function<void()>& prepare = [] {}) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::setenv("ACCELERANT_FAILPOINT", failpoint.c_str(), 1);
    accelerant::reload_failpoints();
    prepare();
    try {
      save(folder, shards, value);
      ::_exit(kDone);
    } catch (const LockRefused&) {
      ::_exit(kRefused);
    } catch (const accelerant::Error& error) {
      ::_exit(contains(error.what(), "belongs to another run now") ? kLost : kFailed);
    }
  }
  ~Saver() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  pid_t pid() const { return pid_; }

  // Whether it was stopped before its end.
  bool stops() {
    int status = 0;
    ::waitpid(pid_, &status, WUNTRACED);
    if (!WIFSTOPPED(status)) pid_ = -1;
    return WIFSTOPPED(status);
  }

  // Continues it, and returns how it ended; -1 if it was killed.
  int finish() {
    ::kill(pid_, SIGCONT);
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = -1;
};

class SavesToOneFolder : public testing::Test {
 protected:
  void SetUp() override {
    system_calls::waits_for_disk() = false;
    accelerant::set_log_handler(
        [this](accelerant::LogLevel, std::string_view text) { log_ += std::string(text) + "\n"; });
  }
  void TearDown() override {
    system_calls::waits_for_disk() = true;
    accelerant::set_log_handler({});
  }

  std::string log_;
};

TEST_F(SavesToOneFolder, OneProcessAtATime) {
  const TempFolder folder;
  save(folder.path(), kTwo, 1);
  Saver other(folder.path(), kTwo, 2, "model.before_complete:stop");
  ASSERT_TRUE(other.stops());
  const std::string error = error_of([&] { save(folder.path(), kOne, 3); });
  EXPECT_TRUE(contains(error, "The model folder " + folder.path() +
                                  " is in use: expected one run at a time, got process " +
                                  std::to_string(other.pid()) + " on "));
  EXPECT_TRUE(contains(error, ", since 20"));
  EXPECT_TRUE(contains(error, "which is stopped but may continue"));
  EXPECT_THROW(ModelSave(folder.path()), LockRefused);
  EXPECT_EQ(value_of(folder.path()), 1);
  EXPECT_EQ(other.finish(), kDone);
  EXPECT_EQ(value_of(folder.path()), 2);
  EXPECT_EQ(entries_of(folder.path()), files_of(kTwo));
}

TEST_F(SavesToOneFolder, ThreadsTakeTurns) {
  const TempFolder folder;
  save(folder.path(), kOne, 100);
  std::atomic<int> running = 4;
  std::vector<std::jthread> savers;
  for (int first = 0; first < 4; ++first) {
    savers.emplace_back([&, first] {
      for (int i = 0; i < 15; ++i) {
        save(folder.path(), i % 2 == 0 ? kTwo : kOne, static_cast<unsigned char>(20 * first + i));
      }
      --running;
    });
  }
  while (running > 0) EXPECT_GE(value_of(folder.path()), 0);
  savers.clear();
  EXPECT_EQ(value_of(folder.path()) % 20, 14);
  EXPECT_EQ(entries_of(folder.path()), files_of(kTwo));
  EXPECT_EQ(log_, "");
}

TEST_F(SavesToOneFolder, ASaveThatFailsLeavesNothing) {
  const TempFolder folder;
  save(folder.path(), kOne, 1);
  {
    const ModelSave failing(folder.path());
    write_files(failing, kTwo, 2);
    EXPECT_EQ(value_of(folder.path()), 1);
  }
  EXPECT_EQ(value_of(folder.path()), 1);
  EXPECT_EQ(entries_of(folder.path()), files_of(kOne));
}

TEST_F(SavesToOneFolder, AForkedChildThatUnwindsChangesNothing) {
  const TempFolder folder;
  struct ChildEnds {};
  try {
    ModelSave parent(folder.path());
    const Written written = write_files(parent, kTwo, 1);
    const pid_t child = ::fork();
    if (child == 0) throw ChildEnds();
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    parent.commit(written.files, written.sums);
  } catch (const ChildEnds&) {
    ::_exit(0);
  }
  EXPECT_EQ(value_of(folder.path()), 1);
  EXPECT_EQ(entries_of(folder.path()), files_of(kTwo));
}

TEST_F(SavesToOneFolder, WhatVersion010LeftIsFinishedOrRemoved) {
  for (const bool is_complete : {false, true}) {
    const TempFolder folder;
    const TempFolder other;
    save(folder.path(), kTwo, 1);
    save(other.path(), kOne, 2);
    run_in_shell("mv '" + other.path() + "' '" + folder.path(kModelSavingName) + "' && mkdir '" +
                 other.path() + "'");
    if (is_complete) {
      folder.write(std::string(kModelSavingName) + "/complete",
                   R"(["model.safetensors", "model.checksums.json"])");
    }
    EXPECT_EQ(value_of(folder.path()), is_complete ? 2 : 1);
    { const ModelSave interrupted(folder.path()); }
    EXPECT_EQ(value_of(folder.path()), is_complete ? 2 : 1);
    EXPECT_EQ(entries_of(folder.path()), files_of(is_complete ? kOne : kTwo));
  }
}

// --- Killed ------------------------------------------------------------------------------------------

constexpr const char* kPlacesOfAModel[] = {"model.before_complete",  "model.complete",
                                           "model.before_checksums", "model.before_move",
                                           "model.before_stale",     "model.before_end",
                                           "model.rename",           "checkpoint.write",
                                           "checkpoint.before_sync", "checkpoint.file_written"};

// The kill of an earlier save, or "".
class KilledSaves : public SavesToOneFolder, public testing::WithParamInterface<const char*> {
 protected:
  // False if the save does not come to the place that often.
  static bool kill_at(const std::string& kill) {
    SCOPED_TRACE(kill);
    const TempFolder folder;
    save(folder.path(), kTwo, 1);
    if (*GetParam() != '\0') {
      EXPECT_EQ(Saver(folder.path(), kOne, 2, GetParam()).finish(), -1);
    }
    const int before = value_of(folder.path());
    Saver saver(folder.path(), kOne, 3, kill);
    const bool is_killed = saver.finish() == -1;
    const int after = value_of(folder.path());
    EXPECT_TRUE(after == 3 || (is_killed && after == before)) << after;
    save(folder.path(), kTwo, 4);
    EXPECT_EQ(value_of(folder.path()), 4);
    EXPECT_EQ(entries_of(folder.path()), files_of(kTwo));
    return is_killed;
  }
};

TEST_P(KilledSaves, LeaveOneModelOrTheOther) {
  int kills = 0;
  const auto try_place = [&](const std::string& place) {
    for (int visit = 1; kill_at(place + ":kill@" + std::to_string(visit)); ++visit) ++kills;
  };
  for (const char* place : kPlacesOfAModel) try_place(place);
  for (const char* place : {"lock.candidate", "lock.successor", "lock.before_replace", "lock.taken",
                            "files.remove_entry"}) {
    try_place(place);
  }
  std::cout << "killed " << kills << " times\n";
  EXPECT_GE(kills, 30);
}

INSTANTIATE_TEST_SUITE_P(After, KilledSaves,
                         testing::Values("", "model.before_complete:kill", "model.complete:kill",
                                         "model.before_move:kill@2", "model.before_end:kill"));

// --- Suspended ---------------------------------------------------------------------------------------

// How far the process that takes over has come when the suspended one continues.
enum class Progress { written, complete, committed };

class SuspendedSaves : public SavesToOneFolder,
                       public testing::WithParamInterface<std::tuple<Progress, Names>> {
 protected:
  // A short lease of this process makes it notice at once that a lock is gone which it has held.
  static void play_another_machine() {
    lock_rules().boot = "another";
    lock_rules().host = "node17";
    lock_rules().lease = std::chrono::milliseconds(kLease);
  }

  // False if the save does not come to the place that often.
  static bool suspend_at(const std::string& stop) {
    SCOPED_TRACE(stop);
    const auto expect_error_of = [&](Saver& saver) {
      const int code = saver.finish();
      // A file cannot be written, or a folder synced, that is not there any more.
      const bool may_fail = stop.starts_with("checkpoint.");
      EXPECT_TRUE(code == kLost || (may_fail && code == kFailed)) << code;
    };
    const auto& [progress, shards] = GetParam();
    const TempFolder folder;
    save(folder.path(), kTwo, 1);
    Saver suspended(folder.path(), kOne, 2, stop, play_another_machine);
    if (!suspended.stops()) return false;
    // Instead of waiting for the lease of this process.
    run_in_shell("touch -d '10 minutes ago' '" + folder.path("model.saving.lock") + "'");
    if (progress == Progress::complete) {
      Saver next(folder.path(), shards, 3, "model.complete:stop");
      EXPECT_TRUE(next.stops());
      expect_error_of(suspended);
      EXPECT_EQ(value_of(folder.path()), 3);
      EXPECT_EQ(next.finish(), kDone);
    } else {
      std::optional<ModelSave> next(folder.path());
      const Written written = write_files(*next, shards, 3);
      if (progress == Progress::written) expect_error_of(suspended);
      next->commit(written.files, written.sums);
      next.reset();
      ::usleep(2000 * kLease);
      if (progress == Progress::committed) expect_error_of(suspended);
    }
    EXPECT_EQ(value_of(folder.path()), 3);
    EXPECT_EQ(entries_of(folder.path()), files_of(shards));
    return true;
  }

  static constexpr int kLease = 10;
};

TEST_P(SuspendedSaves, CannotChangeWhatTheNextOneSaves) {
  int stops = 0;
  for (const std::string place : kPlacesOfAModel) {
    for (int visit = 1; suspend_at(place + ":stop@" + std::to_string(visit)); ++visit) ++stops;
  }
  std::cout << "suspended " << stops << " times\n";
  EXPECT_GE(stops, 20);
}

INSTANTIATE_TEST_SUITE_P(Until, SuspendedSaves,
                         testing::Combine(testing::Values(Progress::written, Progress::complete,
                                                          Progress::committed),
                                          testing::Values(kOne, kTwo)));

}  // namespace
