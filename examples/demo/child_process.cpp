#include "child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <system_error>
#include <thread>

#include "interrupt.h"

namespace demo {
namespace {

constexpr auto patience = std::chrono::seconds(5);  // between asking a program to stop and killing

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Runs in the child, where only few functions are safe.
[[noreturn]] void become(char* const* arguments, int output) {
  setpgid(0, 0);                     // Ctrl-C reaches the demo alone, which then stops its children
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // it does not outlive the demo, however that ends
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(output, STDERR_FILENO);
  execv(arguments[0], arguments);
  dprintf(STDERR_FILENO, "%s cannot be started\n", arguments[0]);
  _exit(127);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe2");
  pid_ = fork();
  if (pid_ == 0) become(arguments.data(), ends[1]);
  close(ends[1]);
  output_ = ends[0];
  if (pid_ < 0) {
    close(output_);
    throw_errno("fork");
  }
}

ChildProcess::~ChildProcess() {
  close(output_);
  if (pid_ == 0) return;
  kill(pid_, SIGTERM);
  const auto limit = std::chrono::steady_clock::now() + patience;
  while (waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > limit) kill(pid_, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool ChildProcess::read_more() {
  pollfd waiting{.fd = output_, .events = POLLIN, .revents = 0};
  if (poll(&waiting, 1, /*milliseconds=*/200) <= 0) return true;  // nothing yet, or a signal
  std::array<char, 4096> piece{};
  const ssize_t size = read(output_, piece.data(), piece.size());
  if (size > 0) unread_.append(piece.data(), static_cast<std::size_t>(size));
  return size > 0 || (size < 0 && errno == EINTR);
}

std::optional<std::string> ChildProcess::next_line() {
  for (;;) {
    throw_if_interrupted();
    const std::size_t end = unread_.find('\n');
    if (end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    if (read_more()) continue;
    if (unread_.empty()) return std::nullopt;
    unread_ += '\n';  // the last line has no end of its own
  }
}

int ChildProcess::exit_code() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) throw_if_interrupted();
  pid_ = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace demo
