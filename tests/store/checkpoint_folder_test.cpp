#include "store/checkpoint_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <vector>

#include "accelerant/core/failpoint.h"
#include "store/sample_checkpoint.h"
#include "store/system_calls.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::checkpoint;
using accelerant::entries_of;
using Names = std::vector<std::string>;

class Folder : public testing::Test {
 protected:
  void TearDown() override { fail_at(""); }

  static void fail_at(const std::string& failpoints) {
    setenv("ACCELERANT_FAILPOINT", failpoints.c_str(), 1);
    accelerant::reload_failpoints();
  }

  Names entries() const { return entries_of(root_.path()); }

  TempFolder root_;
  std::string path_ = root_.path("saved");
};

TEST_F(Folder, HasItsNameOnlyWhenItIsWhole) {
  const CheckpointFolder folder(path_);
  folder.begin();
  const Manifest manifest = sample::write_files(folder, 7);
  EXPECT_EQ(entries(), Names{"saved.tmp"});
  folder.commit(manifest);
  EXPECT_EQ(entries(), Names{"saved"});
  EXPECT_EQ(sample::fault_of(path_, 7), "");
}

TEST_F(Folder, SlashesAtTheEndOfTheTargetMeanNothing) {
  sample::save(path_ + "//", 1);
  EXPECT_EQ(entries(), Names{"saved"});
  EXPECT_EQ(CheckpointFolder(path_ + "/").path(), path_);
}

TEST_F(Folder, TheFoldersAboveAreMade) {
  sample::save(root_.path("a/b/c"), 1);
  EXPECT_EQ(sample::fault_of(root_.path("a/b/c"), 1), "");
}

TEST_F(Folder, ARelativeTargetWorks) {
  std::string before(4096, '\0');
  ASSERT_NE(getcwd(before.data(), before.size()), nullptr);
  ASSERT_EQ(chdir(root_.path().c_str()), 0);
  sample::save("saved", 1);
  sample::save("saved", 2, Existing::replace);
  ASSERT_EQ(chdir(before.c_str()), 0);
  EXPECT_EQ(entries(), Names{"saved"});
  EXPECT_EQ(sample::fault_of(path_, 2), "");
}

TEST_F(Folder, NamesThatCannotBeMadeAreRefused) {
  for (const std::string name : {"", ".", "..", "/", "a/..", "a/.", "../"}) {
    EXPECT_THROW(CheckpointFolder{name}, accelerant::Error) << name;
  }
  EXPECT_TRUE(contains(error_of([] { CheckpointFolder(std::string(250, 'x')); }), "too long"));
  sample::save(root_.path(std::string(243, 'x')), 1);
}

TEST_F(Folder, AnExistingTargetIsRefused) {
  sample::save(path_, 1);
  const std::string text = error_of([&] { CheckpointFolder(path_).begin(); });
  EXPECT_TRUE(contains(text, "got an existing path"));
  EXPECT_TRUE(contains(text, "ask for it to be replaced"));
  EXPECT_EQ(sample::fault_of(path_, 1), "");
  EXPECT_EQ(entries(), Names{"saved"});
}

TEST_F(Folder, ATargetThatComesDuringTheSaveIsRefused) {
  const CheckpointFolder folder(path_);
  folder.begin();
  const Manifest manifest = sample::write_files(folder, 1);
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  EXPECT_TRUE(contains(error_of([&] { folder.commit(manifest); }), "got an existing path"));
}

TEST_F(Folder, BeginRemovesWhatAnInterruptedSaveLeft) {
  run_in_shell("mkdir -p '" + path_ + ".tmp/deep/er' '" + path_ + ".removed.tmp'");
  root_.write("saved.tmp/deep/file", "half");
  sample::save(path_, 3);
  EXPECT_EQ(sample::fault_of(path_, 3), "");
  EXPECT_EQ(entries(), Names{"saved"});
}

TEST_F(Folder, LeftoversThatAreLinksAreRemovedWithoutFollowingThem) {
  const std::string mine = root_.write("mine", "precious");
  run_in_shell("mkdir '" + path_ + ".tmp' '" + root_.path("other") + "'");
  root_.write("other/file", "precious");
  ASSERT_EQ(symlink(root_.path("other").c_str(), (path_ + ".tmp/link").c_str()), 0);
  ASSERT_EQ(symlink(root_.path("other").c_str(), (path_ + ".removed.tmp").c_str()), 0);
  ASSERT_EQ(symlink(mine.c_str(), (path_ + ".tmp/file").c_str()), 0);
  sample::save(path_, 3);
  EXPECT_EQ(entries(), (Names{"mine", "other", "saved"}));
  EXPECT_EQ(TempFolder::content_of(root_.path("other/file")), "precious");
}

TEST_F(Folder, CommitChecksTheFiles) {
  const CheckpointFolder folder(path_);
  folder.begin();
  Manifest manifest = sample::write_files(folder, 1);
  manifest.files["of another machine"] = {.size = 3};
  manifest.files["state.json"].size += 1;
  const std::string text = error_of([&] { folder.commit(manifest); });
  EXPECT_TRUE(contains(text, "of another machine is missing"));
  EXPECT_TRUE(contains(text, "state.json has 100 bytes"));
  EXPECT_TRUE(contains(text, "the same file system"));
  EXPECT_EQ(entries(), Names{"saved.tmp"});
  folder.abandon();
  EXPECT_EQ(entries(), Names{});
  folder.abandon();
}

TEST_F(Folder, NewFilesNeedABegunSaveAndAGoodName) {
  const CheckpointFolder folder(path_);
  EXPECT_TRUE(contains(error_of([&] { folder.new_file("a"); }), "one process must begin"));
  EXPECT_EQ(entries(), Names{});
  folder.begin();
  for (const char* name : {"", "../a", "/a", "a/../../b", "manifest.json"}) {
    EXPECT_THROW(folder.new_file(name), accelerant::Error) << name;
  }
  sample::write_file(folder.new_file("a"), "x");
  EXPECT_TRUE(
      contains(error_of([&] { sample::write_file(folder.new_file("a"), "y"); }), "File exists"));
}

TEST_F(Folder, SeveralWriters) {
  CheckpointFolder(path_).begin();
  std::vector<FileRecord> records(8);
  {
    std::vector<std::jthread> writers;
    for (std::size_t rank = 0; rank < records.size(); ++rank) {
      writers.emplace_back([&, rank] {
        const CheckpointFolder folder(path_);
        const std::string name = "ranks/" + std::to_string(rank % 2) + "/" + std::to_string(rank);
        records[rank] = sample::write_file(folder.new_file(name), std::string(rank, 'x'));
      });
    }
  }
  Manifest manifest;
  for (std::size_t rank = 0; rank < records.size(); ++rank) {
    manifest.files["ranks/" + std::to_string(rank % 2) + "/" + std::to_string(rank)] =
        records[rank];
  }
  CheckpointFolder(path_).commit(manifest);
  EXPECT_TRUE(verify(path_, Check::checksums).is_valid());
}

class Replace : public Folder, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    system_calls::can_exchange() = GetParam();
    sample::save(path_, 1);
  }
  void TearDown() override {
    system_calls::can_exchange() = true;
    Folder::TearDown();
  }
  CheckpointFolder folder_ = CheckpointFolder(path_, Existing::replace);
};

TEST_P(Replace, TheNewOneTakesTheName) {
  for (int number = 2; number < 5; ++number) {
    sample::save(path_, number, Existing::replace);
    EXPECT_EQ(sample::fault_of(path_, number), "");
    EXPECT_EQ(entries(), Names{"saved"});
  }
}

TEST_P(Replace, TheOldOneIsWholeUntilThen) {
  folder_.begin();
  const Manifest manifest = sample::write_files(folder_, 2);
  EXPECT_EQ(sample::fault_of(path_, 1), "");
  for (const char* place : {"checkpoint.before_manifest", "checkpoint.before_rename"}) {
    fail_at(std::string(place) + ":throw");
    EXPECT_THROW(folder_.commit(manifest), accelerant::Error);
    EXPECT_EQ(sample::fault_of(path_, 1), "");
  }
  folder_.abandon();
  EXPECT_EQ(entries(), Names{"saved"});
}

TEST_P(Replace, WhatIsNoCheckpointIsNeverReplaced) {
  const std::string other = root_.path("home");
  run_in_shell("mkdir '" + other + "'");
  root_.write("home/manifest.json", "{\"name\": \"a browser extension\"}");
  EXPECT_TRUE(contains(error_of([&] { CheckpointFolder(other, Existing::replace).begin(); }),
                       "got a folder with other files"));
  const std::string file = root_.write("file", "x");
  EXPECT_TRUE(
      contains(error_of([&] { CheckpointFolder(file, Existing::replace).begin(); }), "got a file"));
  const std::string link = root_.path("link");
  ASSERT_EQ(symlink(path_.c_str(), link.c_str()), 0);
  EXPECT_TRUE(contains(error_of([&] { CheckpointFolder(link, Existing::replace).begin(); }),
                       "got a symbolic link"));
}

TEST_P(Replace, EmptyFoldersAndDamagedCheckpointsMayBe) {
  run_in_shell("mkdir '" + root_.path("empty") + "'");
  sample::save(root_.path("empty"), 2, Existing::replace);
  EXPECT_EQ(sample::fault_of(root_.path("empty"), 2), "");
  const std::string text = TempFolder::content_of(path_ + "/manifest.json");
  root_.write("saved/manifest.json", text.substr(0, text.size() - 5));
  ASSERT_FALSE(verify(path_, Check::sizes).is_valid());
  sample::save(path_, 3, Existing::replace);
  EXPECT_EQ(sample::fault_of(path_, 3), "");
}

TEST_P(Replace, AnOldOneThatCannotBeRemovedIsNoFailure) {
  folder_.begin();
  const Manifest manifest = sample::write_files(folder_, 2);
  fail_at("checkpoint.before_remove:throw");
  EXPECT_NO_THROW(folder_.commit(manifest));
  EXPECT_EQ(sample::fault_of(path_, 2), "");
  EXPECT_EQ(entries().size(), 2u);
  sample::save(path_, 3, Existing::replace);
  EXPECT_EQ(entries(), Names{"saved"});
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, Replace, testing::Bool(), [](const auto& kind) {
  return std::string(kind.param ? "ByExchange" : "ByTwoRenames");
});

class TwoRenames : public Replace {};
INSTANTIATE_TEST_SUITE_P(Checkpoint, TwoRenames, testing::Values(false));

TEST_P(TwoRenames, TheOldOneGetsItsNameBackIfTheSecondFails) {
  folder_.begin();
  const Manifest manifest = sample::write_files(folder_, 2);
  fail_at("checkpoint.old_aside:throw");
  EXPECT_TRUE(contains(error_of([&] { folder_.commit(manifest); }), "failpoint"));
  EXPECT_EQ(sample::fault_of(path_, 1), "");
  folder_.abandon();
  EXPECT_EQ(entries(), Names{"saved"});
}

TEST_P(TwoRenames, RecoverPutsTheOldOneBackAndRemovesNothing) {
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".old.tmp").c_str()), 0);
  run_in_shell("mkdir '" + path_ + ".tmp'");
  CheckpointFolder(path_).recover();
  EXPECT_EQ(sample::fault_of(path_, 1), "");
  EXPECT_EQ(entries(), (Names{"saved", "saved.tmp"}));
  CheckpointFolder(path_).recover();
  EXPECT_EQ(entries(), (Names{"saved", "saved.tmp"}));
}

TEST_P(TwoRenames, SeveralMayRecoverAtOnce) {
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".old.tmp").c_str()), 0);
  fail_at("checkpoint.before_recover:sleep=300");  // so that all threads see that it is missing
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] { EXPECT_NO_THROW(CheckpointFolder(path_).recover()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sample::fault_of(path_, 1), "");
}

TEST_P(TwoRenames, BeginRecoversBeforeItLooks) {
  ASSERT_EQ(rename(path_.c_str(), (path_ + ".old.tmp").c_str()), 0);
  EXPECT_TRUE(contains(error_of([&] { CheckpointFolder(path_).begin(); }), "an existing path"));
  EXPECT_EQ(sample::fault_of(path_, 1), "");
}

}  // namespace
