// What a launcher tells a rank by variables of its environment, and what the rank tells it by files
// that these name. (core/error.h has the error report itself.)
#pragma once

#include <optional>
#include <string>

namespace accelerant {

// The rank of this process as the launcher wrote it into its variable; empty where one process
// runs. For messages and failpoints. Nothing is checked: messages must come through whatever the
// variables are. dist::Environment checks them.
std::string launched_rank();

// Where this process says why it failed: the file of TORCHELASTIC_ERROR_FILE. Nothing for the
// programs that a rank starts, which inherit the variable: their failure is not the rank's. The
// first process that asks for a file has it, and says so to those that it starts, in
// ACCELERANT_ERROR_FILE_OWNER. Not by the process id that the launcher knows: that may be a shell
// which runs the program.
std::optional<std::string> own_error_file();

inline constexpr const char* kSavingFileVariable = "ACCELERANT_SAVING_FILE";

// Makes the file of that variable: it tells the launcher that this rank is saving its state because
// it was asked to stop, and needs longer than ranks that only end. Does nothing where there is no
// launcher that names one, or where it cannot be made: the launcher's usual patience may still be
// enough.
void mark_saving() noexcept;

}  // namespace accelerant
