// What a failing rank tells its launcher: one small JSON file.
//
//   write_error_report(getenv("TORCHELASTIC_ERROR_FILE"), {.message = error.what(), .rank = 3});
//
// The launcher names the file in TORCHELASTIC_ERROR_FILE. The form is torchelastic's, so `torchrun`
// shows the reports of C++ ranks, and `accelerant launch` those of Python ranks that use
// torch.distributed.elastic's `record`. Among the ranks of a run the earliest report is the cause
// of the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accelerant {

struct ErrorReport {
  std::string message = {};          // what the error says
  int64_t rank = -1;                 // of the process; -1: not known
  std::optional<int64_t> step = {};  // the optimizer step it happened in, where one is known
  double time = 0;                   // seconds since 1970; 0 when writing: now
  bool is_consequence = false;       // of the end of another process, which is then to blame
};

// Writes the file whole or not at all. Only the first report that a process writes to a path
// counts: later ones are mostly its consequences. Returns whether the file holds this report. Never
// throws, so it may be called by a std::terminate handler; it allocates, so not by a signal
// handler. Thread-safe.
bool write_error_report(const std::string& path, const ErrorReport& report) noexcept;

// None if the file does not exist or is no report. `time` is to the second in Python's reports.
std::optional<ErrorReport> read_error_report(const std::string& path);

}  // namespace accelerant
