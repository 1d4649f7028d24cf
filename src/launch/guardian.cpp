#include "launch/guardian.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <vector>

#include "launch/folders.h"

namespace accelerant::launch {
namespace {

void close_all_but(int kept) {
  constexpr unsigned int kMostUsed = 1024;
  const auto number = static_cast<unsigned int>(kept);
#ifdef SYS_close_range
  const bool closed = (number == 0 || ::syscall(SYS_close_range, 0U, number - 1, 0U) == 0) &&
                      ::syscall(SYS_close_range, number + 1, ~0U, 0U) == 0;
  if (closed) return;
#endif
  for (unsigned int fd = 0; fd < kMostUsed; ++fd) {
    if (fd != number) ::close(static_cast<int>(fd));
  }
}

// What is killed may create its last file while the folder is removed.
void remove_folder(const std::string& path) {
  for (int attempts = 0; attempts < 50; ++attempts) {
    try {
      return remove_temporary_folder(path);
    } catch (const std::exception&) {
      ::usleep(20'000);
    }
  }
}

// Messages are process groups: positive to watch one, negative to forget it.
[[noreturn]] void guard(int pipe, const std::string& temporary_folder) {
  ::setsid();  // no Ctrl-C
  ::prctl(PR_SET_NAME, "accelerant-guard");
  close_all_but(pipe);  // readers of the launcher's output wait for all copies to be closed
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, nullptr);
  std::vector<pid_t> groups;
  pid_t message = 0;
  while (true) {
    const ssize_t size = ::read(pipe, &message, sizeof message);
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof message) break;
    if (message > 0) {
      groups.push_back(message);
    } else {
      std::erase(groups, -message);
    }
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  if (!temporary_folder.empty()) remove_folder(temporary_folder);
  ::_exit(0);
}

}  // namespace

Guardian::Guardian(const std::string& temporary_folder) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;  // works without it, only less thoroughly
  const Fd read_end(ends[0]);
  pipe_.reset(ends[1]);
  pid_ = ::fork();
  if (pid_ == 0) guard(read_end.get(), temporary_folder);
}

Guardian::~Guardian() {
  if (!process_.is_this_one()) return;
  pipe_.reset();
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

void Guardian::watch(pid_t group) { tell(group); }
void Guardian::forget(pid_t group) { tell(-group); }

void Guardian::tell(pid_t message) {
  if (pid_ <= 0) return;
  [[maybe_unused]] const ssize_t written = ::write(pipe_.get(), &message, sizeof message);
}

}  // namespace accelerant::launch
