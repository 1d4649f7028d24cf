#include "core/regular_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "core/files.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace {

using accelerant::Fd;
using accelerant::open_regular_file;
using accelerant::RegularFile;

std::string refusal_of(const std::string& path) {
  return whole_error_of([&] { open_regular_file(path); });
}

TEST(RegularFile, IsOpenedAlsoThroughALink) {
  const TempFolder folder;
  const std::string path = folder.write("file", "hello");
  ASSERT_EQ(::symlink(path.c_str(), folder.path("link").c_str()), 0);
  for (const std::string& name : {path, folder.path("link")}) {
    const RegularFile file = open_regular_file(name);
    EXPECT_EQ(file.size, 5U);
    char text[5];
    EXPECT_EQ(::read(file.fd.get(), text, 5), 5);
    EXPECT_NE(::fcntl(file.fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

// Opening a pipe to read waits for a writer, and this one never comes.
TEST(RegularFile, NothingElseIsOpenedOrWaitedFor) {
  const TempFolder folder;
  const std::string pipe = folder.path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(contains(refusal_of(pipe), "pipe: not a file: expected a regular file, got a pipe"));
  ASSERT_EQ(::symlink(pipe.c_str(), folder.path("link").c_str()), 0);
  EXPECT_TRUE(contains(refusal_of(folder.path("link")), "got a pipe"));
  EXPECT_TRUE(contains(refusal_of(folder.path()), "got a folder"));
  EXPECT_TRUE(contains(refusal_of("/dev/zero"), "got a device"));

  const Fd socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = folder.path("socket");
  ASSERT_LT(path.size(), sizeof address.sun_path);
  std::memcpy(address.sun_path, path.c_str(), path.size());
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_TRUE(contains(refusal_of(path), "got a socket"));
}

TEST(RegularFile, SaysWhyItCannotBeOpened) {
  const TempFolder folder;
  EXPECT_TRUE(contains(refusal_of(folder.path("none")), "none cannot be read: No such file"));
  ASSERT_EQ(::symlink("nowhere", folder.path("dangling").c_str()), 0);
  EXPECT_TRUE(contains(refusal_of(folder.path("dangling")), "No such file"));
  EXPECT_TRUE(
      contains(whole_error_of([&] { accelerant::read_file(folder.path(), 10); }), "got a folder"));
}

}  // namespace
