// What Accelerant throws, and how a failing rank tells its launcher why.
//
// - Error: something went wrong. All errors of the library have this type.
// - Preempted: the run was asked to stop and has saved its state. This is not an error.
// - ErrorReport: the file that tells a launcher what ended a rank. Programs rarely need it: the
//   library writes one for an uncaught exception.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

namespace accelerant {

// --- Errors --------------------------------------------------------------------------------------

struct ErrorDetails {
  std::string problem = {};   // what went wrong, one sentence without a final period
  std::string expected = {};  // what would have been correct; may be empty
  std::string got = {};       // what was found instead; may be empty
  std::string hint = {};      // what to do about it; may be empty
};

// Says what went wrong, what was expected, what was found, and what to do about it. If PyTorch has
// a fixed text for the situation (for example, calling step() twice), that text is the first line
// of the message, so that searching for it finds PyTorch's documentation. The second line then says
// what to do.
class Error : public std::runtime_error {
 public:
  // Uses `message` unchanged.
  explicit Error(const std::string& message);

  // PyTorch's text, followed on the next line by what was found or what to do.
  Error(const std::string& pytorch_text, const std::string& hint);

  // The message becomes "problem: expected X, got Y; hint".
  explicit Error(const ErrorDetails& details);
};

// --- A run that was asked to stop ----------------------------------------------------------------

// The exit code of a process that saved its state because it was asked to stop: EX_TEMPFAIL, "try
// again later". `accelerant launch` does not restart ranks that exit with it, and exits with it
// too.
inline constexpr int kPreemptedExitCode = 75;

// Ends a run that SIGTERM or SIGUSR1 asked to stop, for example when a cluster reclaims its
// machine. Thrown after the state is saved.
//
//   try {
//     train(accelerator);
//   } catch (const accelerant::Preempted& preempted) {
//     std::cout << "state saved in " << preempted.checkpoint() << "\n";
//     return accelerant::kPreemptedExitCode;
//   }
//
// Catching it is optional. If nobody does, the process ends at once with one line on standard error
// and exit code 75, without an error report or a core dump. As with every uncaught exception,
// destructors do not run; catch it if the program has files of its own to close. It does not derive
// from Error, so handlers of errors do not swallow it. A handler of std::exception does, and should
// end the process with kPreemptedExitCode.
class Preempted : public std::exception {
 public:
  // `signal`: what this process or another one of the run received. `checkpoint`: where the state
  // is.
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

// --- What a failing rank tells its launcher ------------------------------------------------------

// One small JSON file. The launcher names it in TORCHELASTIC_ERROR_FILE.
//
//   write_error_report(getenv("TORCHELASTIC_ERROR_FILE"), {.message = error.what(), .rank = 3});
//
// The format is torchelastic's, so `torchrun` shows the reports of C++ ranks, and `accelerant
// launch` shows those of Python ranks that use torch.distributed.elastic's `record`. Among the
// ranks of a run, the earliest report names the cause of the others.
struct ErrorReport {
  std::string message = {};          // what the error says
  int64_t rank = -1;                 // of the process; -1: unknown
  std::optional<int64_t> step = {};  // the optimizer step it happened in, if known
  double time = 0;                   // seconds since 1970; when writing, 0 means now
  bool is_consequence = false;       // the process failed only because another one ended
};

// Writes the whole file or nothing. Only the first report that a process writes to a path counts,
// because later ones are mostly its consequences. Returns whether the file holds this report. Never
// throws, so a std::terminate handler may call it; it allocates, so a signal handler must not.
// Thread-safe.
bool write_error_report(const std::string& path, const ErrorReport& report) noexcept;

// Empty if the file does not exist or is not a report. In Python's reports, `time` has whole
// seconds.
std::optional<ErrorReport> read_error_report(const std::string& path);

}  // namespace accelerant
