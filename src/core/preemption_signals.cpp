#include "core/preemption_signals.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <string>

#include "accelerant/core/error.h"
#include "accelerant/core/log.h"
#include "core/process_end.h"
#include "core/texts.h"

namespace accelerant {
namespace {

// --- What the handler uses: only async-signal-safe calls -----------------------------------------

std::atomic<int> first_signal = 0;
std::array<std::atomic<int64_t>, NSIG> first_at = {};  // per signal, in nanoseconds; 0: never
std::atomic<int64_t> repeat_after_ns = 0;
std::atomic<pid_t> signal_owner = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free);

int64_t now_ns() {
  timespec time = {};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec + 1;  // never 0
}

// Takes effect when the handler returns; until then the signal is blocked.
void act_as_by_default(int signal) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  ::raise(signal);
}

void on_signal(int signal) {
  const int error = errno;
  const int64_t now = now_ns();
  int64_t before = 0;
  int none = 0;
  if (::getpid() != signal_owner) {
    act_as_by_default(signal);
  } else if (first_at[static_cast<size_t>(signal)].compare_exchange_strong(before, now)) {
    first_signal.compare_exchange_strong(none, signal);
  } else if (signal != SIGUSR1 && signal != SIGUSR2 && now - before >= repeat_after_ns) {
    act_as_by_default(signal);
  }
  errno = error;
}

// --- Who watches what ----------------------------------------------------------------------------

struct Watched {
  int count = 0;  // objects watching it
  struct sigaction before = {};
};
struct Watching {
  std::mutex mutex = {};
  std::array<Watched, NSIG> signals = {};
  int objects = 0;
};

// Never destroyed: a static object may watch signals. A forked child watches none.
Watching& watching() {
  static auto* const made = new detail::OnePerProcess<Watching>();
  return made->get();
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == on_signal;
}

bool is_of_the_program(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void refuse_unless_usable(int signal) {
  const bool exists = signal > 0 && signal < NSIG;
  constexpr std::array unusable = {SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  if (exists && std::ranges::find(unusable, signal) == unusable.end()) return;
  throw Error(ErrorDetails{.problem = "This signal cannot be used to request a save",
                           .expected = "SIGTERM, SIGUSR1, SIGUSR2, SIGINT or similar",
                           .got = signal_name(signal)});
}

void begin_to_watch(int signal) {
  Watched& entry = watching().signals[static_cast<size_t>(signal)];
  if (entry.count++ > 0) return;
  first_at[static_cast<size_t>(signal)] = 0;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;  // the program's read() calls continue
  sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, &entry.before);
  if (is_ours(entry.before)) {  // of this process's parent; here it acts as the default does
    entry.before = {};
    entry.before.sa_handler = SIG_DFL;
  }
  if (is_of_the_program(entry.before)) {
    log(LogLevel::warning, "the program's handler of " + signal_name(signal) +
                               " does not run while the signal requests saving and stopping");
  }
}

void cease_to_watch(int signal) {
  Watched& entry = watching().signals[static_cast<size_t>(signal)];
  if (--entry.count > 0) return;
  struct sigaction now = {};
  ::sigaction(signal, nullptr, &now);
  if (is_ours(now)) ::sigaction(signal, &entry.before, nullptr);
}

}  // namespace

PreemptionSignals::PreemptionSignals(std::vector<int> signals,
                                     std::chrono::milliseconds repeat_after)
    : signals_(std::move(signals)) {
  std::ranges::for_each(signals_, refuse_unless_usable);
  std::ranges::sort(signals_);
  signals_.erase(std::unique(signals_.begin(), signals_.end()), signals_.end());
  handle_preempted();
  const std::lock_guard lock(watching().mutex);
  if (watching().objects++ == 0) first_signal = 0;
  signal_owner = ::getpid();
  repeat_after_ns = std::chrono::nanoseconds(repeat_after).count();
  std::ranges::for_each(signals_, begin_to_watch);
}

PreemptionSignals::~PreemptionSignals() {
  if (!process_.is_this_one()) return;
  const std::lock_guard lock(watching().mutex);
  std::ranges::for_each(signals_, cease_to_watch);
  if (--watching().objects == 0) first_signal = 0;
}

int PreemptionSignals::received() { return first_signal; }

}  // namespace accelerant
