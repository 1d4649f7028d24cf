// Ends the demo in good order on Ctrl-C (SIGINT), SIGTERM and SIGHUP.
#pragma once

namespace demo {

// Thrown after a signal came, so that destructors end what the demo has started.
struct Interrupted {
  int signal = 0;
};

// Catches these signals. One that comes two seconds or more after the first ends the program on the
// spot; earlier ones count as the same request, since `timeout` and terminals often send two.
void install_interrupt_handlers();

// Throws Interrupted if a signal came.
void throw_if_interrupted();

}  // namespace demo
