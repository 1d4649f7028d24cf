// How a training ends that was asked to: by SIGTERM or SIGUSR1, say when a cluster takes its machine back.
//
//   try {
//     train(accelerator);
//   } catch (const accelerant::Preempted& preempted) {
//     std::cout << "state saved in " << preempted.checkpoint() << "\n";
//     return accelerant::kPreemptedExitCode;
//   }
//
// It is thrown when the state is saved, and need not be caught: then the process ends at once, with one line on
// standard error and exit code 75, without an error report and without a core dump. Destructors do not run in
// that case, as with every exception that nobody catches; a program that has files of its own to close
// catches it. It is no accelerant::Error, so that handlers of errors do not swallow it; a handler of
// std::exception does, and should end the process with kPreemptedExitCode.
#pragma once

#include <exception>
#include <string>

namespace accelerant {

// Of a process that has saved its state because it was asked to stop: EX_TEMPFAIL, "try again later".
// `accelerant launch` does not restart ranks that end with it, and ends with it too.
inline constexpr int kPreemptedExitCode = 75;

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

}  // namespace accelerant
