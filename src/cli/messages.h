// What the command says on standard error, and how its failures become exit codes.
#pragma once

#include <string>
#include <string_view>

namespace accelerant::cli {

inline constexpr int kFailure = 1;     // a file is damaged, a check failed, the disk is full
inline constexpr int kUsageError = 2;  // the command line cannot work as written

// The user has to change the command line, as opposed to something being wrong with a file or the
// machine. Ends the command with kUsageError.
struct UsageError {
  std::string message = {};
};

// Text from a file, made safe for a terminal: control characters and bytes that are not UTF-8
// become "\x1b".
std::string printable(std::string_view text);

// "accelerant: error: MESSAGE" and "accelerant: warning: MESSAGE", made safe for a terminal.
void show_error(const std::string& message);
void show_warning(const std::string& message);

}  // namespace accelerant::cli
