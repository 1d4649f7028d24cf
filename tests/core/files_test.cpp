#include "core/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant;
using Names = std::vector<std::string>;

TEST(Files, PartsOfAPath) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("", "b"), "b");
  EXPECT_EQ(folder_of("a/b//c/"), "a/b");
  EXPECT_EQ(folder_of("a"), ".");
  EXPECT_EQ(folder_of("/a"), "/");
  EXPECT_EQ(folder_of("/"), "/");
  EXPECT_EQ(name_of("a/b//"), "b");
  EXPECT_EQ(name_of("/"), "");
}

TEST(Files, MakingFolders) {
  const TempFolder folder;
  make_folders(folder.path("a/b/c"));
  make_folders(folder.path("a/b/c/"));
  EXPECT_TRUE(is_folder(folder.path("a/b/c")));
  EXPECT_TRUE(contains(error_of([&] { make_folder(folder.path("a")); }), "File exists"));
  folder.write("file", "");
  EXPECT_TRUE(contains(error_of([&] { make_folders(folder.path("file/a")); }), "Not a directory"));
  EXPECT_TRUE(contains(error_of([&] { make_folders(folder.path("file")); }), "Not a directory"));
}

TEST(Files, Exchanging) {
  const TempFolder folder;
  folder.write("a", "of a");
  make_folders(folder.path("b/c"));
  if (!exchange_paths(folder.path("a"), folder.path("b"))) GTEST_SKIP() << "not on this disk";
  EXPECT_EQ(TempFolder::content_of(folder.path("b")), "of a");
  EXPECT_TRUE(is_folder(folder.path("a/c")));
  EXPECT_TRUE(contains(error_of([&] { exchange_paths(folder.path("a"), folder.path("none")); }),
                       "No such file"));
}

TEST(Files, RemovingATreeFollowsNoLinks) {
  const TempFolder folder;
  make_folders(folder.path("tree/deep/er"));
  make_folders(folder.path("kept"));
  folder.write("kept/file", "x");
  folder.write("tree/deep/file", "x");
  ASSERT_EQ(symlink(folder.path("kept").c_str(), folder.path("tree/link").c_str()), 0);
  ASSERT_EQ(symlink("nowhere", folder.path("tree/deep/dangling").c_str()), 0);
  ASSERT_EQ(mkfifo(folder.path("tree/pipe").c_str(), 0600), 0);
  remove_tree(folder.path("tree"));
  remove_tree(folder.path("tree"));
  EXPECT_EQ(entries_of(folder.path()), Names{"kept"});
  EXPECT_EQ(entries_of(folder.path("kept")), Names{"file"});
  ASSERT_EQ(symlink(folder.path("kept").c_str(), folder.path("link").c_str()), 0);
  EXPECT_TRUE(is_link(folder.path("link")));
  remove_tree(folder.path("link"));
  EXPECT_EQ(entries_of(folder.path()), Names{"kept"});
}

TEST(Files, SizesAreThoseOfPlainFiles) {
  const TempFolder folder;
  folder.write("file", "four");
  ASSERT_EQ(symlink("file", folder.path("link").c_str()), 0);
  EXPECT_EQ(size_of_file(folder.path("file")), 4u);
  EXPECT_EQ(size_of_file(folder.path("link")), 4u);
  EXPECT_EQ(size_of_file(folder.path()), std::nullopt);
  EXPECT_EQ(size_of_file(folder.path("none")), std::nullopt);
}

TEST(Files, Reading) {
  const TempFolder folder;
  const std::string path = folder.write("file", "four");
  EXPECT_EQ(read_file(path, 4), "four");
  EXPECT_TRUE(contains(error_of([&] { read_file(path, 3); }), "File too large"));
  EXPECT_TRUE(contains(error_of([&] { read_file(folder.path(), 3); }), "Is a directory"));
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_of([&] { read_file(folder.path("pipe"), 3); }), "cannot be read"));
}

}  // namespace
