#include "launch/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/launch_contract.h"
#include "launch/start_error.h"

namespace accelerant::launch {
namespace {

struct Pipe {
  Fd read;
  Fd write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorDetails{.problem = "cannot create a pipe for the output of a rank",
                             .got = std::strerror(errno),
                             .hint = "raise the limit of open files (ulimit -n)"});
  }
  return {Fd(ends[0]), Fd(ends[1])};
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// What the child does between fork and exec. Other threads of the parent may have held locks, so
// only calls that are safe in signal handlers are allowed here.
struct ChildStart {
  const char* path;
  char* const* arguments;
  char* const* environment;
  int out;
  int err;
  int inherited;
  int failure;  // where the reason goes if exec fails
  pid_t parent;

  [[noreturn]] void run() const {
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::signal(SIGPIPE, SIG_DFL);
    if (::dup2(out, STDOUT_FILENO) >= 0 && ::dup2(err, STDERR_FILENO) >= 0 &&
        (inherited < 0 || ::fcntl(inherited, F_SETFD, 0) == 0)) {
      ::execve(path, arguments, environment);
    }
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(failure, &error, sizeof error);
    ::_exit(127);
  }
};

// The reason why exec failed; 0 if it did not.
int read_failure(const Fd& failure) {
  int error = 0;
  ssize_t size = 0;
  do {
    size = ::read(failure.get(), &error, sizeof error);
  } while (size < 0 && errno == EINTR);
  return size == sizeof error ? error : 0;
}

[[noreturn]] void refuse_program(const std::string& name, int error) {
  if (error == ENOENT) {
    throw StartError(ErrorDetails{.problem = "there is no program " + name,
                                  .hint = name.find('/') == std::string::npos
                                              ? "it is not in PATH; for a file in this folder "
                                                "write ./" +
                                                    name
                                              : "check the path (a script: also its first line)"},
                     127);
  }
  if (error == EISDIR) {
    throw StartError(ErrorDetails{.problem = name + " cannot be run: it is a folder",
                                  .hint = "name the program in it"},
                     126);
  }
  if (error == ENOEXEC) {
    throw StartError(ErrorDetails{.problem = name + " cannot be run: it is not a program",
                                  .hint = "a script needs a first line such as #!/bin/sh"},
                     126);
  }
  throw StartError(ErrorDetails{.problem = name + " cannot be run",
                                .got = std::strerror(error),
                                .hint = "make it executable (chmod +x)"},
                   126);
}

// 0 if the file can be run, or the reason why not.
int obstacle(const std::string& path) {
  struct stat file = {};
  if (::stat(path.c_str(), &file) != 0) return errno == ENOTDIR ? ENOENT : errno;
  if (S_ISDIR(file.st_mode)) return EISDIR;
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.empty()) throw StartError(ErrorDetails{.problem = "the program has no name"}, 127);
  if (name.find('/') != std::string::npos) {
    const int error = obstacle(name);
    if (error != 0) refuse_program(name, error);
    return name;
  }
  const char* variable = std::getenv("PATH");
  std::string_view rest = variable == nullptr ? "/usr/local/bin:/usr/bin:/bin" : variable;
  int best_reason = ENOENT;
  while (true) {
    const size_t colon = rest.find(':');
    const std::string folder(rest.substr(0, colon));
    const std::string path = (folder.empty() ? "." : folder) + "/" + name;
    const int error = obstacle(path);
    if (error == 0) return path;
    if (error == EACCES) best_reason = error;
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  refuse_program(name, best_reason);
}

ChildProcess start_child(const ChildCommand& command) {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  Pipe failure = make_pipe();
  std::vector<std::string> variables = command.environment;
  std::string terminals;
  for (const std::string& entry : {terminal_entry(out.write.get(), command.out_terminal),
                                   terminal_entry(err.write.get(), command.err_terminal)}) {
    if (!entry.empty()) terminals += (terminals.empty() ? "" : ",") + entry;
  }
  if (!terminals.empty()) variables.push_back(std::string(kTerminalVariable) + "=" + terminals);
  const std::vector<char*> arguments = pointers_to(command.arguments);
  const std::vector<char*> environment = pointers_to(variables);
  const ChildStart start = {.path = command.path.c_str(),
                            .arguments = arguments.data(),
                            .environment = environment.data(),
                            .out = out.write.get(),
                            .err = err.write.get(),
                            .inherited = command.inherited_fd,
                            .failure = failure.write.get(),
                            .parent = ::getpid()};
  const pid_t pid = ::fork();
  if (pid == 0) start.run();
  if (pid < 0) {
    throw Error(ErrorDetails{.problem = "cannot create a process for a rank",
                             .got = std::strerror(errno),
                             .hint = "free memory, or raise the limit of processes (ulimit -u)"});
  }
  failure.write.reset();
  if (const int error = read_failure(failure.read)) {
    ::waitpid(pid, nullptr, 0);
    refuse_program(command.path, error);
  }
  ::fcntl(out.read.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(err.read.get(), F_SETFL, O_NONBLOCK);
  return {.pid = pid,
          .pidfd = Fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))),
          .out = std::move(out.read),
          .err = std::move(err.read)};
}

}  // namespace accelerant::launch
