// Where this process says why it failed, if it is the one that its launcher asks.
#pragma once

#include <optional>
#include <string>

namespace accelerant {

// The file of TORCHELASTIC_ERROR_FILE. Nothing for the programs that a rank starts, which inherit the variable:
// their failure is not the rank's. The first process that asks for a file has it, and says so to those that
// it starts, in ACCELERANT_ERROR_FILE_OWNER. Not by the process id that the launcher knows: that may be a
// shell which runs the program.
std::optional<std::string> own_error_file();

}  // namespace accelerant
