#include "store/verify.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/sample_checkpoint.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::checkpoint;
using testing::AssertionResult;

class Verify : public testing::Test {
 protected:
  void SetUp() override { sample::save(path_, 1); }

  std::string file(const std::string& name) const { return path_ + "/" + name; }

  // Exactly one problem, with this text.
  AssertionResult one_problem(Check check, const std::string& text) const {
    const Verification found = verify(path_, check);
    if (found.problems.size() != 1) {
      return testing::AssertionFailure() << found.problems.size() << " problems";
    }
    return contains(found.problems[0], text);
  }

  TempFolder folder_;
  std::string path_ = folder_.path("saved");
};

void change_byte(const std::string& path, std::size_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(byte ^ 0x10));
}

TEST_F(Verify, AWholeOneHasNoProblems) {
  for (const Check check : {Check::sizes, Check::checksums}) {
    const Verification found = verify(path_, check);
    EXPECT_TRUE(found.is_valid());
    EXPECT_TRUE(found.notes.empty());
    EXPECT_EQ(found.manifest.files.size(), 4u);
  }
}

TEST_F(Verify, AChangedByteIsOnlyAMatterOfChecksums) {
  change_byte(file("model.safetensors"), 1 << 20);
  EXPECT_TRUE(one_problem(Check::checksums, "model.safetensors is damaged"));
  EXPECT_TRUE(verify(path_, Check::sizes).is_valid());
}

TEST_F(Verify, OtherSizes) {
  ASSERT_EQ(truncate(file("state.json").c_str(), 99), 0);
  EXPECT_TRUE(one_problem(Check::sizes, "state.json has 99 bytes instead of 100"));
  ASSERT_EQ(truncate(file("empty").c_str(), 1), 0);
  EXPECT_EQ(verify(path_, Check::checksums).problems.size(), 2u);
}

TEST_F(Verify, MissingFiles) {
  ASSERT_EQ(unlink(file("custom/deep/object.bin").c_str()), 0);
  EXPECT_TRUE(one_problem(Check::sizes, "custom/deep/object.bin is missing"));
}

TEST_F(Verify, WhatIsNotAFile) {
  ASSERT_EQ(unlink(file("empty").c_str()), 0);
  ASSERT_EQ(mkfifo(file("empty").c_str(), 0600), 0);
  EXPECT_TRUE(one_problem(Check::checksums, "empty is not a file"));
}

TEST_F(Verify, APipeAsManifestDoesNotBlock) {
  ASSERT_EQ(unlink(file("manifest.json").c_str()), 0);
  ASSERT_EQ(mkfifo(file("manifest.json").c_str(), 0600), 0);
  EXPECT_TRUE(one_problem(Check::sizes, "manifest.json: not a file"));
}

TEST_F(Verify, UnexpectedFilesAreOnlyNoted) {
  folder_.write("saved/notes.txt", "mine");
  folder_.write("saved/custom/more", "");
  const Verification found = verify(path_, Check::checksums);
  EXPECT_TRUE(found.is_valid());
  ASSERT_EQ(found.notes.size(), 2u);
  EXPECT_EQ(found.notes[0], "custom/more does not belong to the checkpoint");
}

TEST_F(Verify, WithoutAManifestOrAFolder) {
  ASSERT_EQ(unlink(file("manifest.json").c_str()), 0);
  EXPECT_TRUE(one_problem(Check::sizes, "No such file"));
  path_ = folder_.path("nowhere");
  EXPECT_TRUE(one_problem(Check::sizes, "No such file"));
}

TEST_F(Verify, FollowsLinksToTheRightBytes) {
  const std::string elsewhere = folder_.path("elsewhere");
  ASSERT_EQ(rename(file("state.json").c_str(), elsewhere.c_str()), 0);
  ASSERT_EQ(symlink(elsewhere.c_str(), file("state.json").c_str()), 0);
  EXPECT_TRUE(verify(path_, Check::checksums).is_valid());
  change_byte(elsewhere, 5);
  EXPECT_TRUE(one_problem(Check::checksums, "state.json is damaged"));
  ASSERT_EQ(unlink(elsewhere.c_str()), 0);
  EXPECT_TRUE(one_problem(Check::sizes, "state.json is not a file"));
}

// A link that leads to a folder above it must not be followed forever.
TEST_F(Verify, LinksInACircle) {
  ASSERT_EQ(symlink("..", file("custom/up").c_str()), 0);
  const Verification found = verify(path_, Check::checksums);
  EXPECT_TRUE(found.is_valid());
  EXPECT_EQ(found.notes.size(), 1u);
}

}  // namespace
