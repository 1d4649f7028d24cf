// Messages of the library to the user.
//
// The library itself prints nothing but these. They go to standard error, prefixed with the rank
// where several processes run, or to a handler of the program's own. Thread-safe.
#pragma once

#include <functional>
#include <string_view>

namespace accelerant {

enum class LogLevel { debug, info, warning, error };

using LogHandler = std::function<void(LogLevel, std::string_view)>;

// Sends a message to the handler in force.
void log(LogLevel level, std::string_view message);

// The same, but only in process 0. For what every process would say in the same words; Accelerate's
// logger calls it main_process_only.
void log_on_main(LogLevel level, std::string_view message);

// Replaces the handler and returns the one before; an empty handler stands for the default, which
// writes warnings and errors to standard error (ACCELERANT_LOG_LEVEL=debug|info|warning|error|off
// changes the threshold).
LogHandler set_log_handler(LogHandler handler);

}  // namespace accelerant
