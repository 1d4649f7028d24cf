#include "launch/signal_watch.h"

#include <sys/signalfd.h>

#include <ctime>

namespace accelerant::launch {
namespace {

bool is_ignored(int signal) {
  struct sigaction action = {};
  ::sigaction(signal, nullptr, &action);
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

SignalWatch::SignalWatch() {
  sigemptyset(&watched_);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1}) {
    if (!is_ignored(signal)) sigaddset(&watched_, signal);
  }
  sigset_t blocked = watched_;
  for (const int signal : {SIGPIPE, SIGXFSZ}) sigaddset(&blocked, signal);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  fd_.reset(::signalfd(-1, &watched_, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalWatch::~SignalWatch() {
  // Signals that are still pending were handled, or come too late; they must not kill us now.
  sigset_t left = watched_;
  for (const int signal : {SIGPIPE, SIGXFSZ}) {
    if (sigismember(&before_, signal) == 0) sigaddset(&left, signal);
  }
  const timespec no_time = {};
  while (::sigtimedwait(&left, nullptr, &no_time) > 0) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::optional<int> SignalWatch::next() {
  signalfd_siginfo information = {};
  if (::read(fd_.get(), &information, sizeof information) != sizeof information) {
    return std::nullopt;
  }
  return static_cast<int>(information.ssi_signo);
}

}  // namespace accelerant::launch
