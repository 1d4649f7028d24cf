// Forks children and says how they end, and of one that hangs, where.
#pragma once

#include <execinfo.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>

#include "support/timeout_scale.h"

namespace forked {

// Leaves all scopes of the child up to as_main().
struct ReturnFromMain {
  int code;
};

// Throws where nobody catches, not even GoogleTest.
inline void throw_uncaught(const std::string& text) noexcept {
  // Writing the memory of a process with libtorch to a core file can take longer than end_of waits.
  prctl(PR_SET_DUMPABLE, 0);
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

// --- Children that hang --------------------------------------------------------------------------

// The file to which a child writes its stack. Shared with it, and not left to programs it becomes.
inline const int stack_file = memfd_create("stack of a forked child", MFD_CLOEXEC);

// In a child that hangs, SIGQUIT writes its stack and ends it.
inline const bool tells_its_stack = [] {
  std::array<void*, 1> frame;
  backtrace(frame.data(), 1);  // loads what the handler may not load
  struct sigaction action = {};
  action.sa_handler = [](int) {
    std::array<void*, 64> frames;
    const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
    backtrace_symbols_fd(frames.data(), count, stack_file);
    _exit(1);
  };
  return sigaction(SIGQUIT, &action, nullptr) == 0;
}();

inline std::string content_of_proc(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What the system knows about the threads of the child: for what each of them waits.
inline std::string threads_of(pid_t child) {
  std::string text;
  std::error_code gone;
  const std::filesystem::path tasks = "/proc/" + std::to_string(child) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    const std::string status = content_of_proc(task.path() / "status");
    const size_t state = std::min(status.find("State:"), status.size());
    text += "thread " + content_of_proc(task.path() / "comm");
    text += status.substr(state, status.find('\n', state) - state);
    text += "\nwaits in " + content_of_proc(task.path() / "wchan");
    text += ", system call " + content_of_proc(task.path() / "syscall");
  }
  return text;
}

// The status of a child that ends until then.
inline std::optional<int> status_within(pid_t child, std::chrono::duration<double> time) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + time;
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (Clock::now() > deadline) return std::nullopt;
    usleep(1000);
  }
  return status;
}

// Ends a child that hangs. Returns what it was doing.
inline std::string end_hanging(pid_t child) {
  const bool is_empty = ftruncate(stack_file, 0) == 0 && lseek(stack_file, 0, SEEK_SET) == 0;
  std::string text = threads_of(child);
  if (!is_empty) text += "the stacks of an earlier child come first; ";
  kill(child, SIGQUIT);
  if (!status_within(child, std::chrono::seconds(5))) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    text += "and does not answer SIGQUIT; ";
  }
  return text + "stack:\n" + content_of_proc("/proc/self/fd/" + std::to_string(stack_file));
}

// Whether a child of this process has hung. The next ones will too, and one of them is enough.
inline bool one_has_hung = false;

// How a child ended: "exit 7", "signal 6", or that it hangs, and where; then it is killed. It hangs
// after 9 seconds: libtorch itself gives up waiting for threads that a child does not have after 10.
inline std::string end_of(pid_t child) {
  if (child < 0) return "was not forked";
  const double seconds = (one_has_hung ? 1 : 9) * timeout_scale();
  const auto status = status_within(child, std::chrono::duration<double>(seconds));
  if (!status) {
    one_has_hung = true;
    return "hangs: " + end_hanging(child);
  }
  return WIFSIGNALED(*status) ? "signal " + std::to_string(WTERMSIG(*status))
                              : "exit " + std::to_string(WEXITSTATUS(*status));
}

// --- Children that end ---------------------------------------------------------------------------

// Children that leave in each way in which C++ cleans up. Called inside as_main().
inline void expect_children_to_end() {
  if (one_has_hung) return;  // each step of a training forks some
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
