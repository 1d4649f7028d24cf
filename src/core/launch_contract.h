// What a launcher tells a rank through environment variables, and what the rank answers through
// files that these variables name. The error report itself is in core/error.h.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace accelerant {

// The rank of this process as the launcher's variable has it; empty for a single process. For
// messages and failpoints, so the value is not checked: a message must come through whatever the
// variables hold. dist::Environment checks them.
std::string launched_rank();

// Where this process reports why it failed: the file named by TORCHELASTIC_ERROR_FILE. Empty for
// programs that a rank starts: they inherit the variable, but their failure is not the rank's. The
// first process that asks for a file owns it and tells its children through
// ACCELERANT_ERROR_FILE_OWNER. The process id that the launcher knows would not do: it may be that
// of a shell.
std::optional<std::string> own_error_file();

// Names the file with the secret of the run (meet/secret.h).
inline constexpr const char* kSecretFileVariable = "ACCELERANT_SECRET_FILE";

inline constexpr const char* kSavingFileVariable = "ACCELERANT_SAVING_FILE";

// Creates the file that this variable names. It tells the launcher that this rank is saving its
// state because it was asked to stop, and needs longer than ranks that only exit. Does nothing if
// no launcher names a file or the file cannot be created: the launcher's normal grace period may
// still be enough.
void mark_saving() noexcept;

// Set if the launcher prints the error report of the rank that failed first when all ranks have
// ended. Ranks then print only the first line of a long error, so that it is on the screen once.
inline constexpr const char* kErrorIsReportedVariable = "ACCELERANT_ERROR_IS_REPORTED";
inline constexpr const char* kRestIsReported = " [...]";  // behind that line

// --- A terminal behind the launcher ---

// Ranks write into pipes. Of a rank whose output the launcher shows on a terminal, this variable
// says so: "<inode of the pipe>:<columns>:<terminal>", for one or both streams, separated by
// commas. The inode tells whether a descriptor still is that pipe, or has been redirected since.
inline constexpr const char* kTerminalVariable = "ACCELERANT_TERMINAL";

// The entry of that variable for what is written to `pipe` and shown on `terminal`. Empty if
// `terminal` is not a terminal.
std::string terminal_entry(int pipe, int terminal);

// How many columns the terminal has on which a launcher shows what is written to `fd`. Nothing if
// there is no such launcher or terminal. Follows changes of the window's size as far as the
// terminal can be opened by its name.
std::optional<std::size_t> columns_behind_launcher(int fd);

// The columns of a terminal; nothing if `fd` is not one, or does not know.
std::optional<std::size_t> terminal_columns(int fd);

}  // namespace accelerant
