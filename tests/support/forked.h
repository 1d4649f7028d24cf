// Forks children and says how they end.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace forked {

// Leaves all scopes of the child up to as_main().
struct ReturnFromMain {
  int code;
};

// Throws where nobody catches, not even GoogleTest.
inline void throw_uncaught(const std::string& text) noexcept {
  const auto fail = [&] { throw std::runtime_error(text); };
  fail();
}

// Calls f, as main would. A child that throws ReturnFromMain in it returns from main.
template <class F>
void as_main(F&& f) {
  try {
    f();
  } catch (const ReturnFromMain& returning) {
    std::exit(returning.code);
  }
}

// How a child ended: "exit 7", "signal 6", or "hangs" after a long time; then it is killed.
inline std::string end_of(pid_t child) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(20);
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return "hangs";
    }
    usleep(1000);
  }
  return WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                             : "exit " + std::to_string(WEXITSTATUS(status));
}

// Children that leave in each way in which C++ cleans up. Called inside as_main().
inline void expect_children_to_end() {
  fflush(nullptr);
  pid_t child = fork();
  if (child == 0) throw ReturnFromMain{7};
  EXPECT_EQ(end_of(child), "exit 7") << "of a child that returns from main";
  child = fork();
  if (child == 0) std::exit(8);
  EXPECT_EQ(end_of(child), "exit 8") << "of a child that calls exit";
  child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
    throw_uncaught("not caught");
  }
  EXPECT_EQ(end_of(child), "signal 6") << "of a child that throws";
}

}  // namespace forked
