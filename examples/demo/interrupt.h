// Ends the demo in good order on Ctrl-C (SIGINT) and on SIGTERM.
#pragma once

namespace demo {

// Thrown between two batches after a signal came, so that destructors end the progress line.
struct Interrupted {
  int signal = 0;
};

// Catches the first signal of each kind; a second one ends the program on the spot.
void install_interrupt_handlers();

// Throws Interrupted if a signal came.
void throw_if_interrupted();

}  // namespace demo
