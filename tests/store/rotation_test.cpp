#include "store/rotation.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "accelerant/core/failpoint.h"
#include "store/sample_checkpoint.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::checkpoint;
using accelerant::entries_of;
using Names = std::vector<std::string>;
using Numbers = std::vector<std::int64_t>;

class Rotation : public testing::Test {
 protected:
  void TearDown() override { unset_failpoint(); }

  static void unset_failpoint() {
    unsetenv("ACCELERANT_FAILPOINT");
    accelerant::reload_failpoints();
  }

  std::string path(std::int64_t number) const { return checkpoint_path(folder_, number); }
  void save(std::int64_t number) const { sample::save(path(number), number); }
  void make(const std::string& name) const {
    run_in_shell("mkdir -p '" + root_.path("checkpoints/" + name) + "'");
  }
  Names entries() const { return entries_of(folder_); }
  Numbers numbers() const {
    Numbers found;
    for (const auto& one : list_checkpoints(folder_)) found.push_back(one.number);
    return found;
  }

  TempFolder root_;
  std::string folder_ = checkpoints_folder(root_.path());
};

TEST_F(Rotation, Names) {
  EXPECT_EQ(checkpoints_folder("run"), "run/checkpoints");
  EXPECT_EQ(checkpoint_path("run/checkpoints", 12), "run/checkpoints/checkpoint_12");
}

TEST_F(Rotation, AMissingFolderIsEmpty) {
  EXPECT_EQ(next_number(folder_), 0);
  EXPECT_TRUE(list_checkpoints(folder_).empty());
  EXPECT_TRUE(list_without_manifest(folder_).empty());
  EXPECT_TRUE(clean_leftovers(folder_).empty());
  EXPECT_TRUE(prune(folder_, 1).empty());
}

TEST_F(Rotation, TheOrderIsThatOfNumbers) {
  for (const int number : {10, 9, 100, 2}) save(number);
  EXPECT_EQ(numbers(), (Numbers{2, 9, 10, 100}));
  EXPECT_EQ(next_number(folder_), 101);
}

TEST_F(Rotation, OtherEntriesAreIgnored) {
  save(1);
  for (const char* name :
       {"best", "checkpoint_", "checkpoint_x", "checkpoint_5_copy", "xcheckpoint_6",
        "checkpoint_-7", "checkpoint_8 ", "Checkpoint_9", "checkpoint_99999999999999999999",
        "checkpoint_+3", "checkpoint_10.tmp", "checkpoint_11.old.tmp", "checkpoint_0x1", "\xff"}) {
    run_in_shell("cp -r '" + path(1) + "' '" + folder_ + "/" + name + "'");
  }
  EXPECT_EQ(numbers(), Numbers{1});
  EXPECT_EQ(next_number(folder_), 2);
}

TEST_F(Rotation, FoldersWithoutAManifestAreNotCompleteButTheirNumbersAreTaken) {
  save(1);
  make("checkpoint_5");
  root_.write("checkpoints/checkpoint_7", "a file");
  ASSERT_EQ(symlink("nowhere", path(6).c_str()), 0);
  make("checkpoint_4/manifest.json");
  EXPECT_EQ(numbers(), Numbers{1});
  EXPECT_EQ(next_number(folder_), 8);
  EXPECT_TRUE(prune(folder_, 1).empty());
  Names others;
  for (const auto& one : list_without_manifest(folder_)) others.push_back(one.path);
  EXPECT_EQ(others, (Names{path(4), path(5), path(6)}));
}

TEST_F(Rotation, PruneRemovesTheOldest) {
  for (const int number : {3, 11, 9, 10}) save(number);
  EXPECT_EQ(prune(folder_, 4), Names{});
  EXPECT_EQ(prune(folder_, 2), (Names{path(3), path(9)}));
  EXPECT_EQ(entries(), (Names{"checkpoint_10", "checkpoint_11"}));
}

TEST_F(Rotation, PruneNeverRemovesTheNewest) {
  for (const int number : {1, 2}) save(number);
  EXPECT_EQ(prune(folder_, 0), Names{path(1)});
  EXPECT_EQ(prune(folder_, -5), Names{});
  EXPECT_EQ(sample::fault_of(path(2), 2), "");
}

TEST_F(Rotation, PruneTakesTheNameAwayBeforeTheFiles) {
  for (const int number : {1, 2}) save(number);
  setenv("ACCELERANT_FAILPOINT", "files.remove_entry:throw@4", 1);
  accelerant::reload_failpoints();
  EXPECT_THROW(prune(folder_, 1), accelerant::Error);
  unset_failpoint();
  EXPECT_EQ(entries(), (Names{"checkpoint_1.removed.tmp", "checkpoint_2"}));
  EXPECT_EQ(clean_leftovers(folder_), Names{"checkpoint_1.removed.tmp"});
  EXPECT_EQ(entries(), Names{"checkpoint_2"});
}

TEST_F(Rotation, CleaningLeavesWhatIsNotOurs) {
  save(1);
  for (const char* name :
       {"checkpoint_2.tmp/half", "checkpoint_3.removed.tmp", "best.tmp", "checkpoint_x.tmp",
        "checkpoint_4.other.tmp", "tmp", "checkpoint_5.tmp2", "checkpoint_1.old.tmp"}) {
    make(name);
  }
  EXPECT_EQ(clean_leftovers(folder_),
            (Names{"checkpoint_1.old.tmp", "checkpoint_2.tmp", "checkpoint_3.removed.tmp"}));
  EXPECT_EQ(entries(), (Names{"best.tmp", "checkpoint_1", "checkpoint_4.other.tmp",
                              "checkpoint_5.tmp2", "checkpoint_x.tmp", "tmp"}));
}

TEST_F(Rotation, WhatCannotBeLookedAtIsNotNothing) {
  ASSERT_EQ(symlink("checkpoints", folder_.c_str()), 0);
  EXPECT_TRUE(contains(error_of([&] { list_checkpoints(folder_); }), "Too many levels"));
  EXPECT_TRUE(contains(error_of([&] { next_number(folder_); }), "Too many levels"));
  run_in_shell("rm '" + folder_ + "'");
  save(1);
  ASSERT_EQ(symlink("checkpoint_2", path(2).c_str()), 0);
  EXPECT_TRUE(contains(error_of([&] { list_checkpoints(folder_); }), "Too many levels"));
}

constexpr const char* kOther = "0123456789ab";

TEST_F(Rotation, CleaningRemovesLeftoversOfAllOwners) {
  save(1);
  const std::string other = std::string(".") + kOther;
  make("checkpoint_2" + other + ".tmp/half");
  make("checkpoint_3" + other + ".removed.tmp");
  make("checkpoint_4.0123.tmp");  // no id
  make("checkpoint_5.0123456789AB.tmp");
  EXPECT_EQ(clean_leftovers(folder_, {.id = "ba9876543210"}),
            (Names{"checkpoint_2" + other + ".tmp", "checkpoint_3" + other + ".removed.tmp"}));
}

TEST_F(Rotation, UnfinishedFoldersHaveTheNameOfTheirOwner) {
  accelerant::make_folders(folder_);
  const CheckpointFolder one(path(1), Existing::refuse, {.id = kOther});
  const CheckpointFolder other(path(1), Existing::refuse, {.id = "ba9876543210"});
  one.begin();
  const Manifest manifest = sample::write_files(one, 1);
  EXPECT_EQ(entries(), Names{std::string("checkpoint_1.") + kOther + ".tmp"});
  // Whoever has the lock now removes it, so that the name cannot be given to it any more.
  other.begin();
  EXPECT_EQ(entries(), Names{"checkpoint_1.ba9876543210.tmp"});
  EXPECT_THROW(one.commit(manifest), accelerant::Error);
  one.abandon();
  other.commit(sample::write_files(other, 2));
  EXPECT_EQ(entries(), Names{"checkpoint_1"});
  EXPECT_EQ(sample::fault_of(path(1), 2), "");
}

TEST_F(Rotation, NothingIsChangedWithoutTheLock) {
  for (const int number : {1, 2}) save(number);
  make("checkpoint_5.tmp");
  const Names before = entries();
  const Owner lost = {.id = kOther, .require_held = [] { throw accelerant::Error("lost"); }};
  EXPECT_EQ(error_of([&] { prune(folder_, 1, lost); }), "lost");
  EXPECT_EQ(error_of([&] { clean_leftovers(folder_, lost); }), "lost");
  EXPECT_EQ(error_of([&] { CheckpointFolder(path(3), Existing::refuse, lost).begin(); }), "lost");
  EXPECT_EQ(entries(), before);
  // It may be lost in the middle of a save.
  bool is_lost = false;
  const Owner losing = {.id = kOther, .require_held = [&] {
                          if (is_lost) throw accelerant::Error("lost");
                        }};
  const CheckpointFolder folder(path(3), Existing::refuse, losing);
  folder.begin();
  const Manifest manifest = sample::write_files(folder, 3);
  is_lost = true;
  EXPECT_EQ(error_of([&] { folder.commit(manifest); }), "lost");
  folder.abandon();
  EXPECT_EQ(entries(), before);
}

TEST_F(Rotation, CleaningPutsAReplacedOneBack) {
  save(1);
  ASSERT_EQ(rename(path(1).c_str(), (path(1) + ".old.tmp").c_str()), 0);
  EXPECT_EQ(clean_leftovers(folder_), Names{"checkpoint_1.old.tmp"});
  EXPECT_EQ(sample::fault_of(path(1), 1), "");
}

TEST_F(Rotation, ALinkToACheckpointCountsAndItsTargetIsNeverRemoved) {
  const std::string elsewhere = root_.path("elsewhere");
  save(2);
  sample::save(elsewhere, 1);
  ASSERT_EQ(symlink(elsewhere.c_str(), path(1).c_str()), 0);
  ASSERT_EQ(symlink("nowhere", path(3).c_str()), 0);
  EXPECT_EQ(numbers(), (Numbers{1, 2}));
  EXPECT_EQ(next_number(folder_), 4);
  EXPECT_EQ(prune(folder_, 1), Names{path(1)});
  EXPECT_EQ(sample::fault_of(elsewhere, 1), "");
  EXPECT_FALSE(accelerant::path_exists(path(1)));
}

TEST_F(Rotation, FindsTheNewest) {
  for (const int number : {9, 10}) save(number);
  const auto found = find_newest_valid(folder_, [](const std::string& text) { FAIL() << text; });
  EXPECT_EQ(found.number, 10);
  EXPECT_EQ(found.path, path(10));
  EXPECT_EQ(found.manifest.content["number"], 10);
}

void flip_bit(const std::string& path, std::size_t at) {
  std::string content = TempFolder::content_of(path);
  content[at] = static_cast<char>(content[at] ^ 4);
  std::ofstream(path, std::ios::binary) << content;
}

TEST_F(Rotation, AFlippedBitInAnyFileMeansThePreviousOne) {
  for (const int number : {0, 1}) save(number);
  for (const std::string name :
       {"model.safetensors", "state.json", "custom/deep/object.bin", "manifest.json"}) {
    const std::string file = path(1) + "/" + name;
    const std::size_t size = TempFolder::content_of(file).size();
    for (const std::size_t at : {std::size_t{0}, size / 2, size - 2}) {
      flip_bit(file, at);
      Names refused;
      const auto report = [&](const std::string& text) { refused.push_back(text); };
      EXPECT_EQ(find_newest_valid(folder_, report).number, 0) << name << " " << at;
      ASSERT_EQ(refused.size(), 1u);
      EXPECT_TRUE(contains(refused[0], path(1) + " cannot be used:\n"));
      EXPECT_TRUE(contains(refused[0], name));
      flip_bit(file, at);
    }
  }
  EXPECT_EQ(sample::fault_of(path(1), 1), "");
}

TEST_F(Rotation, AllProblemsOfAllAreReported) {
  for (const int number : {1, 2, 3}) save(number);
  flip_bit(path(1) + "/state.json", 3);
  run_in_shell("rm '" + path(2) + "/empty' '" + path(2) + "/state.json'");
  run_in_shell("rm '" + path(3) + "/manifest.json'");
  Names refused;
  const std::string text = whole_error_of([&] {
    find_newest_valid(folder_, [&](const std::string& report) { refused.push_back(report); });
  });
  ASSERT_EQ(refused.size(), 3u);
  EXPECT_TRUE(contains(refused[0], "checkpoint_3"));
  EXPECT_TRUE(contains(refused[1], "empty is missing\n  state.json is missing"));
  for (const std::string& report : refused) EXPECT_TRUE(contains(text, report));
}

TEST_F(Rotation, NoneAtAllIsAnError) {
  const std::string text = error_of(
      [&] { find_newest_valid(folder_, [](const std::string& report) { FAIL() << report; }); });
  EXPECT_TRUE(contains(text, "No usable checkpoint in " + folder_));
  EXPECT_TRUE(contains(text, "got none"));
}

}  // namespace
