#include "interrupt.h"

#include <csignal>

namespace demo {
namespace {

volatile std::sig_atomic_t received_signal = 0;

}  // namespace

void install_interrupt_handlers() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { received_signal = signal; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

void throw_if_interrupted() {
  if (received_signal != 0) throw Interrupted{received_signal};
}

}  // namespace demo
