#include "meet/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using accelerant::meet::Secret;

std::string text_of(const Secret& secret) {
  return {reinterpret_cast<const char*>(secret.bytes().data()), secret.bytes().size()};
}

TEST(SecretTest, WritesAndReads) {
  const TempFolder folder;
  const Secret one = Secret::random();
  EXPECT_EQ(one.bytes().size(), 32U);
  EXPECT_NE(text_of(one), text_of(Secret::random()));
  const std::string path = folder.path("secret");
  const mode_t before = ::umask(0);
  one.write(path);
  ::umask(before);
  EXPECT_EQ(text_of(Secret::read(path)), text_of(one));
  struct stat status = {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  EXPECT_TRUE(contains(whole_error_of([&] { one.write(path); }), "cannot be written"));
}

TEST(SecretTest, OnlyFilesThatNobodyElseCanUse) {
  const TempFolder folder;
  const auto refusal = [](const std::string& path) {
    const std::string error = whole_error_of([&] { Secret::read(path); });
    EXPECT_TRUE(contains(error, "The file of the run's secret cannot be used: " + path));
    return error;
  };
  const std::string path = folder.write("secret", std::string(32, 'x'));
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610, 0601}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_TRUE(contains(refusal(path), "chmod 600")) << mode;
  }
  for (const mode_t mode : {0400, 0600, 0700}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_EQ(text_of(Secret::read(path)), std::string(32, 'x'));
  }
  // A link to such a file, as Kubernetes and users make them.
  ASSERT_EQ(::symlink(path.c_str(), folder.path("link").c_str()), 0);
  EXPECT_EQ(text_of(Secret::read(folder.path("link"))), std::string(32, 'x'));
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    EXPECT_TRUE(contains(refusal(path), "one of user 65534"));
  }
  EXPECT_TRUE(contains(refusal(folder.path("missing")), "No such file"));
  EXPECT_TRUE(contains(refusal(folder.path()), "a regular file"));
  ASSERT_EQ(::mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(contains(refusal(folder.path("pipe")), "a regular file"));  // and does not hang
}

TEST(SecretTest, ShortAndLongFiles) {
  const TempFolder folder;
  const auto with = [&](size_t size) {
    const std::string path = folder.write("secret", std::string(size, 'x'));
    EXPECT_EQ(::chmod(path.c_str(), 0600), 0);
    return path;
  };
  for (const size_t size : {32U, 65U, 4096U})
    EXPECT_EQ(Secret::read(with(size)).bytes().size(), size);
  EXPECT_TRUE(contains(whole_error_of([&] { Secret::read(with(31)); }), "got 31 bytes"));
  EXPECT_TRUE(contains(whole_error_of([&] { Secret::read(with(0)); }), "got 0 bytes"));
  EXPECT_TRUE(contains(whole_error_of([&] { Secret::read(with(4097)); }), "got more"));
}

// The kernel says of every part of the memory whether core dumps leave it out ("dd").
TEST(SecretTest, IsInNoCoreDump) {
  const Secret secret = Secret::random();
  const auto address = reinterpret_cast<uintptr_t>(secret.bytes().data());
  std::ifstream maps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      is_here = begin <= address && address < end;
    if (is_here && line.starts_with("VmFlags:")) {
      EXPECT_TRUE(contains(line + " ", " dd "));
      return;
    }
  }
  GTEST_SKIP() << "the kernel does not tell";
}

}  // namespace
