#include "interrupt.h"

#include <unistd.h>

#include <csignal>
#include <ctime>

namespace demo {
namespace {

volatile std::sig_atomic_t received_signal = 0;
volatile std::time_t received_at = 0;  // seconds since 1970

void on_signal(int signal) {
  const std::time_t now = std::time(nullptr);
  if (received_signal == 0) {
    received_signal = signal;
    received_at = now;
  } else if (now - received_at >= 2) {
    _exit(128 + signal);
  }
}

}  // namespace

void install_interrupt_handlers() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaction(signal, &action, nullptr);
}

void throw_if_interrupted() {
  if (received_signal != 0) throw Interrupted{received_signal};
}

}  // namespace demo
