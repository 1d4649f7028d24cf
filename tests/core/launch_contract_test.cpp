#include "core/launch_contract.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "core/fd.h"

namespace accelerant {
namespace {

class TerminalBehindLauncher : public testing::Test {
 protected:
  void SetUp() override {
    terminal_.reset(::posix_openpt(O_RDWR | O_NOCTTY));
    ASSERT_TRUE(terminal_.is_open());
    ASSERT_EQ(::grantpt(terminal_.get()), 0);
    ASSERT_EQ(::unlockpt(terminal_.get()), 0);
    screen_.reset(::open(::ptsname(terminal_.get()), O_RDWR | O_NOCTTY));
    ASSERT_TRUE(screen_.is_open());
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    out_.reset(ends[0]);
    in_.reset(ends[1]);
  }
  void TearDown() override { ::unsetenv(kTerminalVariable); }

  void resize(unsigned short columns) {
    const winsize size = {.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ASSERT_EQ(::ioctl(screen_.get(), TIOCSWINSZ, &size), 0);
  }

  Fd terminal_;
  Fd screen_;
  Fd out_;
  Fd in_;
};

TEST_F(TerminalBehindLauncher, TellsItsColumnsAndFollowsChanges) {
  resize(120);
  const std::string entry = terminal_entry(in_.get(), screen_.get());
  ::setenv(kTerminalVariable, ("1:80:/dev/none," + entry).c_str(), 1);
  EXPECT_EQ(columns_behind_launcher(in_.get()), 120U);
  resize(60);
  EXPECT_EQ(columns_behind_launcher(in_.get()), 60U);
}

TEST_F(TerminalBehindLauncher, IsKnownWithoutItsName) {
  resize(120);
  std::string entry = terminal_entry(in_.get(), screen_.get());
  entry.resize(entry.rfind(':') + 1);
  ::setenv(kTerminalVariable, entry.c_str(), 1);
  EXPECT_EQ(columns_behind_launcher(in_.get()), 120U);
}

TEST_F(TerminalBehindLauncher, IsOnlyThatOfThePipe) {
  EXPECT_EQ(terminal_entry(in_.get(), out_.get()), "");  // not a terminal
  ::setenv(kTerminalVariable, terminal_entry(in_.get(), screen_.get()).c_str(), 1);
  int others[2];
  ASSERT_EQ(::pipe(others), 0);
  const Fd other_out(others[0]);
  const Fd other_in(others[1]);
  EXPECT_FALSE(columns_behind_launcher(other_in.get()));
  const Fd file(::open("/dev/null", O_WRONLY));
  EXPECT_FALSE(columns_behind_launcher(file.get()));
  for (const char* bad : {"", "x", ",", ":::", "99999999999999999999:1:"}) {
    ::setenv(kTerminalVariable, bad, 1);
    EXPECT_FALSE(columns_behind_launcher(in_.get())) << bad;
  }
}

}  // namespace
}  // namespace accelerant
