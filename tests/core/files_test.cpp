#include "core/files.h"

#include <accelerant/core/failpoint.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

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

TEST(Files, NothingIsOnlyWhatTheSystemCallsNothing) {
  const TempFolder folder;
  folder.write("file", "");
  for (const std::string& path : {folder.path("none"), folder.path("none/a"), folder.path("file/a"),
                                  folder.path("file/a/b")}) {
    EXPECT_FALSE(path_exists(path));
    EXPECT_FALSE(is_folder(path));
    EXPECT_FALSE(is_link(path));
    EXPECT_FALSE(size_of_file(path).has_value());
  }
}

// What cannot be looked at may exist.
void expect_all_throw(const std::string& path, const std::string& reason) {
  SCOPED_TRACE(path);
  EXPECT_TRUE(contains(error_of([&] { path_exists(path); }), reason));
  EXPECT_TRUE(contains(error_of([&] { is_folder(path); }), reason));
  EXPECT_TRUE(contains(error_of([&] { is_link(path); }), reason));
  EXPECT_TRUE(contains(error_of([&] { size_of_file(path); }), reason));
}

TEST(Files, OtherFailuresAreErrors) {
  const TempFolder folder;
  ASSERT_EQ(symlink("loop", folder.path("loop").c_str()), 0);
  expect_all_throw(folder.path("loop/a"), "Too many levels of symbolic links");
  EXPECT_TRUE(is_link(folder.path("loop")));
  EXPECT_TRUE(path_exists(folder.path("loop")));
  EXPECT_TRUE(contains(error_of([&] { is_folder(folder.path("loop")); }), "cannot be accessed"));
  expect_all_throw(folder.path(std::string(300, 'x')), "File name too long");
  try {
    is_folder(folder.path("loop"));
  } catch (const SystemError& error) {
    EXPECT_EQ(error.number(), ELOOP);
    EXPECT_FALSE(error.is_full_disk());
  }
  EXPECT_TRUE(SystemError("problem", ENOSPC).is_full_disk());
  EXPECT_TRUE(SystemError("problem", EDQUOT).is_full_disk());
}

TEST(Files, AFolderOfAnotherUserIsNotNothing) {
  const TempFolder folder;
  make_folders(folder.path("theirs/inside"));
  ::chmod(folder.path().c_str(), 0755);
  ::chmod(folder.path("theirs").c_str(), 0700);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(77);
    if (::geteuid() != 65534) ::chmod(folder.path("theirs").c_str(), 0);
    expect_all_throw(folder.path("theirs/inside"), "Permission denied");
    expect_all_throw(folder.path("theirs/none"), "Permission denied");
    EXPECT_TRUE(is_folder(folder.path("theirs")));
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ::chmod(folder.path("theirs").c_str(), 0700);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "cannot become another user";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
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

TEST(Files, RemovingATreeDoesNotFollowAFolderThatBecomesALink) {
  const TempFolder folder;
  make_folders(folder.path("tree/inner"));
  make_folders(folder.path("kept"));
  folder.write("tree/inner/file", "x");
  folder.write("kept/file", "x");
  const pid_t child = ::fork();
  if (child == 0) {
    setenv("ACCELERANT_FAILPOINT", "files.remove_entry:stop@3", 1);  // before tree/inner/file
    reload_failpoints();
    EXPECT_TRUE(contains(error_of([&] { remove_tree(folder.path("tree")); }), "cannot be removed"));
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  rename_path(folder.path("tree/inner"), folder.path("moved"));
  ASSERT_EQ(symlink(folder.path("kept").c_str(), folder.path("tree/inner").c_str()), 0);
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(entries_of(folder.path("kept")), Names{"file"});
  EXPECT_TRUE(is_link(folder.path("tree/inner")));
  remove_tree(folder.path("tree"));
  EXPECT_EQ(entries_of(folder.path()), (Names{"kept", "moved"}));
  EXPECT_EQ(entries_of(folder.path("kept")), Names{"file"});
}

TEST(Files, RemovingADeepTreeOpensFewFolders) {
  const TempFolder folder;
  std::string deep = folder.path("tree");
  for (int level = 0; level < 1000; ++level) deep += "/d";
  run_in_shell("mkdir -p '" + deep + "'");
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit few = {.rlim_cur = 64, .rlim_max = 64};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    remove_tree(folder.path("tree"));
    EXPECT_TRUE(entries_of(folder.path()).empty());
    std::fflush(nullptr);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
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
  EXPECT_TRUE(contains(error_of([&] { read_file(folder.path(), 3); }), "got a folder"));
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(contains(error_of([&] { read_file(folder.path("pipe"), 3); }), "got a pipe"));
}

}  // namespace
