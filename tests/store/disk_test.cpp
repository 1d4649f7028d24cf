// Disks that are full, slow, read-only or failing, and the rule that everything is on the disk
// before it counts.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <new>
#include <random>

#include "store/model_checksums.h"
#include "store/rotation.h"
#include "store/sample_checkpoint.h"
#include "store/system_calls.h"
#include "store/verify.h"
#include "support/expect_error.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::checkpoint;
using accelerant::entries_of;
using Names = std::vector<std::string>;

constexpr int kSkipped = 77;

// For tests that change the whole process. The body returns false if this machine does not allow
// it.
void run_in_child(const std::function<bool()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool ran = body();
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : ran ? 0 : kSkipped);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kSkipped) GTEST_SKIP() << "not allowed on this machine";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

bool mount_small_disk(const std::string& path, const char* options) {
  const bool is_private =
      ::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
  return is_private && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("none", path.c_str(), "tmpfs", 0, options) == 0;
}

// A save that must fail with this text and leave everything as it was.
void expect_failed_save(const std::string& path, std::int64_t number, const std::string& reason) {
  const CheckpointFolder folder(path);
  const std::string text = error_of([&] {
    folder.begin();
    folder.commit(sample::write_files(folder, number));
  });
  EXPECT_TRUE(contains(text, reason));
  folder.abandon();
  EXPECT_FALSE(accelerant::path_exists(path));
  EXPECT_FALSE(accelerant::path_exists(path + ".tmp"));
}

TEST(Disk, FullBeforeTheSaveEnds) {
  const TempFolder folder;
  run_in_child([&] {
    // Enough for one checkpoint of 1 MiB and part of a second one.
    if (!mount_small_disk(folder.path(), "size=1800k")) return false;
    sample::save(checkpoint_path(folder.path(), 0), 0);
    expect_failed_save(checkpoint_path(folder.path(), 1), 1, "No space left on device");
    EXPECT_EQ(find_newest_valid(folder.path(), {}).number, 0);
    prune(folder.path(), 1);
    run_in_shell("rm -r '" + checkpoint_path(folder.path(), 0) + "'");
    sample::save(checkpoint_path(folder.path(), 1), 1);
    EXPECT_EQ(sample::fault_of(checkpoint_path(folder.path(), 1), 1), "");
    return true;
  });
}

TEST(Disk, FullForNewNames) {
  const TempFolder folder;
  run_in_child([&] {
    if (!mount_small_disk(folder.path(), "size=8m,nr_inodes=14")) return false;
    sample::save(checkpoint_path(folder.path(), 0), 0);
    expect_failed_save(checkpoint_path(folder.path(), 1), 1, "No space left on device");
    EXPECT_EQ(find_newest_valid(folder.path(), {}).number, 0);
    return true;
  });
}

TEST(Disk, FilesThatMayNotGrow) {
  const TempFolder folder;
  run_in_child([&] {
    sample::save(checkpoint_path(folder.path(), 0), 0);
    // The limit lies in the second piece of the large file: a part of it is written, then nothing
    // more.
    const rlimit limit = {.rlim_cur = (1 << 20) + 5, .rlim_max = (1 << 20) + 5};
    ::signal(SIGXFSZ, SIG_IGN);
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    expect_failed_save(checkpoint_path(folder.path(), 1), 1, "File too large");
    EXPECT_EQ(find_newest_valid(folder.path(), {}).number, 0);
    return true;
  });
}

TEST(Disk, ReadOnlyFolder) {
  const TempFolder folder;
  sample::save(folder.path("saved"), 1);
  run_in_child([&] {
    ::chmod(folder.path().c_str(), 0555);
    if (::geteuid() == 0 && ::setuid(65534) != 0) return false;
    const std::string text = error_of([&] { CheckpointFolder(folder.path("next")).begin(); });
    EXPECT_TRUE(contains(text, "Permission denied"));
    EXPECT_TRUE(contains(error_of([&] { CheckpointFolder(folder.path("saved")).remove(); }),
                         "Permission denied"));
    CheckpointFolder(folder.path("saved")).abandon();
    return true;
  });
  ::chmod(folder.path().c_str(), 0755);
  EXPECT_EQ(sample::fault_of(folder.path("saved"), 1), "");
}

// It may be good, so that a training must not go on from the one before it.
void expect_no_older_checkpoint(const std::string& folder, const std::string& reason) {
  const std::string text = whole_error_of(
      [&] { find_newest_valid(folder, [](const std::string& report) { FAIL() << report; }); });
  EXPECT_TRUE(contains(text, reason));
  EXPECT_TRUE(contains(text, "not resumed from a checkpoint before " + checkpoint_path(folder, 1)));
  EXPECT_TRUE(contains(text, "make it readable, or write the path of another checkpoint"));
}

TEST(Disk, ACheckpointThatCannotBeReadIsNoDamagedOne) {
  const TempFolder folder;
  for (const int number : {0, 1}) sample::save(checkpoint_path(folder.path(), number), number);
  const system_calls::Scope calls(folder.path());
  for (const char* file : {"/model.safetensors", "/manifest.json"}) {
    calls->unreadable = std::string("checkpoint_1") + file;
    expect_no_older_checkpoint(folder.path(), std::string(file) + " cannot be read: Input/output");
  }
  // With damage beside it, it is of no use.
  calls->unreadable = "checkpoint_1/model.safetensors";
  ASSERT_EQ(::unlink((checkpoint_path(folder.path(), 1) + "/state.json").c_str()), 0);
  EXPECT_EQ(find_newest_valid(folder.path(), {}).number, 0);
}

TEST(Disk, AFileThatCannotBeReadIsNoDamagedOne) {
  const TempFolder folder;
  sample::save(folder.path("saved"), 1);
  const Manifest manifest = read_manifest(folder.path("saved"));
  const auto [name, record] = *manifest.files.find("model.safetensors");
  const system_calls::Scope calls(folder.path());
  calls->unreadable = name;
  const auto problem = problem_of_file(folder.path("saved"), name, record, Check::checksums);
  ASSERT_TRUE(problem);
  EXPECT_FALSE(problem->is_damage);
  EXPECT_TRUE(contains(problem->text, "cannot be read: Input/output error"));
  // The files of models are read by other means.
  FileChecksums sums = {.size = record.size};
  sums.blocks.resize(record.size / sums.block_bytes + 1);
  try {
    damage_of(folder.path("saved/" + name), sums, "list", 1);
    ADD_FAILURE() << "it was read";
  } catch (const accelerant::Error& error) {
    EXPECT_FALSE(problem_of(error).is_damage) << error.what();
  }
  calls->unreadable = "";
  ASSERT_EQ(::unlink(folder.path("saved/" + name).c_str()), 0);
  EXPECT_TRUE(problem_of_file(folder.path("saved"), name, record, Check::sizes)->is_damage);
  EXPECT_FALSE(problem_of(std::bad_alloc()).is_damage);
}

TEST(Disk, ACheckpointWithoutPermissionIsNoDamagedOne) {
  const TempFolder folder;
  for (const int number : {0, 1}) sample::save(checkpoint_path(folder.path(), number), number);
  run_in_child([&] {
    ::chmod(folder.path().c_str(), 0755);
    const std::string newest = checkpoint_path(folder.path(), 1);
    ::chmod((newest + "/state.json").c_str(), 0);
    ::chmod((newest + "/custom").c_str(), 0);
    if (::geteuid() == 0 && ::setuid(65534) != 0) return false;
    expect_no_older_checkpoint(folder.path(), "state.json cannot be read: Permission denied");
    expect_no_older_checkpoint(folder.path(), "object.bin cannot be accessed: Permission denied");
    return true;
  });
  run_in_shell("chmod -R u+rwX '" + folder.path() + "'");
}

TEST(Disk, ShortWritesAndInterruptions) {
  const TempFolder folder;
  const unsigned seed = random_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const system_calls::Scope calls(folder.path());
  for (int number = 0; number < 5; ++number) {
    calls->largest_write = 1 + random() % 5000;
    calls->interruptions = 3;
    sample::save(checkpoint_path(folder.path(), number), number);
    EXPECT_EQ(sample::fault_of(checkpoint_path(folder.path(), number), number), "");
  }
}

TEST(Disk, AWriterThatFailedCannotBeFinished) {
  const TempFolder folder;
  const system_calls::Scope calls(folder.path());
  FileWriter unwritten(folder.path("unwritten"));
  calls->largest_write = 0;
  const std::string large(1 << 21, 'x');
  const auto write = [&](FileWriter& file) { file.write(std::as_bytes(std::span(large))); };
  EXPECT_THROW(write(unwritten), accelerant::Error);
  calls->largest_write = SIZE_MAX;
  EXPECT_THROW(write(unwritten), accelerant::Error);
  EXPECT_THROW(unwritten.finish(), accelerant::Error);

  // A second fsync after a failed one may succeed although the data is lost.
  FileWriter unsynced(folder.path("unsynced"));
  write(unsynced);
  calls->unsyncable = "unsynced";
  EXPECT_TRUE(contains(error_of([&] { unsynced.finish(); }), "Input/output error"));
  calls->unsyncable = "";
  EXPECT_THROW(unsynced.finish(), accelerant::Error);

  FileWriter finished(folder.path("finished"));
  finished.finish();
  EXPECT_THROW(finished.finish(), accelerant::Error);
}

TEST(Disk, AFailureOfAnySyncOrRenameFailsTheSave) {
  for (const char* name : {"/model.safetensors", "/custom", "/deep", "/manifest.json", ".tmp"}) {
    const TempFolder folder;
    const system_calls::Scope calls(folder.path());
    calls->unsyncable = name;
    expect_failed_save(folder.path("saved"), 1, "Input/output error");
  }
  const TempFolder folder;
  const system_calls::Scope calls(folder.path());
  calls->unrenamable = "saved";
  expect_failed_save(folder.path("saved"), 1, "Input/output error");
}

TEST(Disk, AFailedReplacementLeavesTheOldOne) {
  const TempFolder folder;
  sample::save(folder.path("saved"), 1);
  const system_calls::Scope calls(folder.path());
  system_calls::can_exchange() = false;
  const CheckpointFolder next(folder.path("saved"), Existing::replace);
  next.begin();
  const Manifest manifest = sample::write_files(next, 2);
  calls->unrenamable = "saved.old.tmp";
  EXPECT_TRUE(contains(error_of([&] { next.commit(manifest); }), "Input/output error"));
  next.abandon();
  EXPECT_EQ(sample::fault_of(folder.path("saved"), 1), "");
  EXPECT_EQ(entries_of(folder.path()), Names{"saved"});
}

TEST(Disk, AReplacedCheckpointStaysUntilTheNewOneIsKnownToBeOnTheDisk) {
  const TempFolder folder;
  sample::save(folder.path("saved"), 1);
  const CheckpointFolder next(folder.path("saved"), Existing::replace);
  next.begin();
  const Manifest manifest = sample::write_files(next, 2);
  const system_calls::Scope calls(folder.path());
  calls->unsyncable = ".";  // the folder above: a system crash may undo the exchange
  EXPECT_TRUE(contains(error_of([&] { next.commit(manifest); }), "Input/output error"));
  next.abandon();
  EXPECT_EQ(sample::fault_of(folder.path("saved"), 2), "");
  EXPECT_EQ(sample::fault_of(folder.path("saved.tmp"), 1), "");
  calls->unsyncable = "";
  next.begin();
  EXPECT_EQ(sample::fault_of(folder.path("saved"), 2), "");
}

TEST(Disk, WhatAnInterruptedSaveLeftIsRemovedAfterASync) {
  const TempFolder folder;
  CheckpointFolder(folder.path("saved")).begin();
  folder.write("saved.tmp/model", "half");
  const system_calls::Scope calls(folder.path());
  CheckpointFolder(folder.path("saved")).begin();
  EXPECT_EQ(calls->recorded, (Names{"sync .", "sync ."}));
}

TEST(Disk, ASignalDuringCloseIsNoFailure) {
  const TempFolder folder;
  const system_calls::Scope calls(folder.path());
  FileWriter file(folder.path("file"));
  calls->is_close_interrupted = true;
  EXPECT_EQ(file.finish().size, 0U);
}

// --- Order ------------------------------------------------------------------------------------------

// The records without the many writes. The last write of each file must come before its sync.
Names order_of(const Names& recorded) {
  Names order;
  for (const std::string& record : recorded) {
    if (!record.starts_with("write ")) order.push_back(record);
  }
  return order;
}

std::ptrdiff_t last(const Names& names, const std::string& name) {
  return names.rend() - std::find(names.rbegin(), names.rend(), name);
}

TEST(Disk, EverythingIsSyncedBeforeTheFolderGetsItsName) {
  const TempFolder folder;
  const system_calls::Scope calls(folder.path());
  sample::save(folder.path("saved"), 1);
  EXPECT_EQ(order_of(calls->recorded),
            (Names{"sync .", "sync saved.tmp", "sync saved.tmp/custom",
                   "sync saved.tmp/custom/deep/object.bin", "sync saved.tmp/empty",
                   "sync saved.tmp/model.safetensors", "sync saved.tmp/state.json",
                   "sync saved.tmp/manifest.json", "sync saved.tmp", "sync saved.tmp/custom",
                   "sync saved.tmp/custom/deep", "rename saved.tmp saved", "sync ."}));
  for (const char* name :
       {"custom/deep/object.bin", "model.safetensors", "state.json", "manifest.json"}) {
    const std::string path = std::string("saved.tmp/") + name;
    EXPECT_LT(last(calls->recorded, "write " + path), last(calls->recorded, "sync " + path));
    EXPECT_GT(last(calls->recorded, "write " + path), 0);
  }
}

Names end_of_replacement(bool by_exchange) {
  const TempFolder folder;
  sample::save(folder.path("saved"), 1);
  const system_calls::Scope calls(folder.path());
  system_calls::can_exchange() = by_exchange;
  sample::save(folder.path("saved"), 2, Existing::replace);
  const Names order = order_of(calls->recorded);
  return {order.begin() + last(order, "sync saved.tmp/custom/deep"), order.end()};
}

TEST(Disk, AReplacementIsSyncedStepByStep) {
  EXPECT_EQ(end_of_replacement(true), (Names{"exchange saved.tmp saved", "sync .",
                                             "rename saved.tmp saved.removed.tmp", "sync ."}));
  EXPECT_EQ(end_of_replacement(false),
            (Names{"rename saved saved.old.tmp", "sync .", "rename saved.tmp saved", "sync .",
                   "rename saved.old.tmp saved.removed.tmp", "sync ."}));
}

TEST(Disk, NewFoldersAboveAreSyncedToo) {
  const TempFolder folder;
  const system_calls::Scope calls(folder.path());
  CheckpointFolder(folder.path("run/checkpoints/checkpoint_0")).begin();
  EXPECT_EQ(calls->recorded, (Names{"sync .", "sync run", "sync run/checkpoints"}));
}

}  // namespace
