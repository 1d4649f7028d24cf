// What Accelerant throws, and how a rank that fails tells its launcher why.
//
// - Error: something went wrong. All errors of the library are of this type.
// - Preempted: the training was asked to stop and has saved its state. This is no error.
// - ErrorReport: the file by which a launcher learns what ended a rank. Programs rarely need it:
//   the library writes one for an exception that nobody catches.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

namespace accelerant {

// --- Errors --------------------------------------------------------------------------------------

struct ErrorDetails {
  std::string problem = {};   // what went wrong, one sentence without a final full stop
  std::string expected = {};  // what would have been right; may be empty
  std::string got = {};       // what was there instead; may be empty
  std::string hint = {};      // what to do about it; may be empty
};

// Says what went wrong, what was expected, what was got and what to do about it. Where a situation
// has a fixed text in PyTorch (for example calling step() twice), the first line of the message is
// that text, so that searching for it finds PyTorch's documentation, and a second line says what to
// do.
class Error : public std::runtime_error {
 public:
  // `message` is used as it is.
  explicit Error(const std::string& message);

  // PyTorch's text, and on the next line what was got or what to do.
  Error(const std::string& pytorch_text, const std::string& hint);

  // The message becomes "problem: expected X, got Y; hint".
  explicit Error(const ErrorDetails& details);
};

// --- The end of a training that was asked to stop ------------------------------------------------

// The exit code of a process that has saved its state because it was asked to stop: EX_TEMPFAIL,
// "try again later". `accelerant launch` does not restart ranks that end with it, and ends with it
// too.
inline constexpr int kPreemptedExitCode = 75;

// How a training ends that was asked to stop by SIGTERM or SIGUSR1, say when a cluster takes its
// machine back. Thrown when the state is saved.
//
//   try {
//     train(accelerator);
//   } catch (const accelerant::Preempted& preempted) {
//     std::cout << "state saved in " << preempted.checkpoint() << "\n";
//     return accelerant::kPreemptedExitCode;
//   }
//
// It need not be caught: then the process ends at once, with one line on standard error and exit
// code 75, without an error report and without a core dump. Destructors do not run in that case, as
// with every exception that nobody catches; a program that has files of its own to close catches
// it. It is no Error, so that handlers of errors do not swallow it; a handler of std::exception
// does, and should end the process with kPreemptedExitCode.
class Preempted : public std::exception {
 public:
  // The signal that was received, by this process or by another of the run, and where the state is.
  Preempted(int signal, std::string checkpoint);

  int signal() const { return signal_; }
  const std::string& checkpoint() const { return checkpoint_; }

  // "SIGTERM received: state saved in runs/checkpoint_3".
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int signal_;
  std::string checkpoint_;
  std::string text_;
};

// --- What a rank that fails tells its launcher ---------------------------------------------------

// One small JSON file, which the launcher names in TORCHELASTIC_ERROR_FILE.
//
//   write_error_report(getenv("TORCHELASTIC_ERROR_FILE"), {.message = error.what(), .rank = 3});
//
// The form is torchelastic's, so `torchrun` shows the reports of C++ ranks, and `accelerant launch`
// those of Python ranks that use torch.distributed.elastic's `record`. Among the ranks of a run the
// earliest report is the cause of the others.
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
