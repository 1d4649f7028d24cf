// The threshold of the default log handler, from ACCELERANT_LOG_LEVEL.
#pragma once

namespace accelerant {

// Reads the variable now instead of at the first message, so that a value that cannot be used is
// reported even by a program that logs nothing. Does nothing if the program has its own handler.
void check_log_level();

}  // namespace accelerant
