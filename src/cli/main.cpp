// The command `accelerant`. It links no libtorch, so it starts in milliseconds; what needs libtorch
// is done by helper programs beside it.

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string_view>

#include "accelerant/version.h"
#include "cli/commands.h"
#include "launch/start_error.h"

namespace {

constexpr const char* kHelp =
    R"(Usage: accelerant COMMAND [OPTIONS]

Runs programs built with Accelerant, and looks after what they save.

Commands:
  launch         Start a program in one or more processes and watch over them
  test           Check that processes of this machine can train together
  env            Show what matters in a bug report
  inspect        Show what is in a model, a checkpoint or a file of tensors
  verify         Check that a model or checkpoints are not damaged
  merge-weights  Make one file of a model in several
  convert        Write a model with another type, format or size of files
  merge-traces   Make one trace of the profiles of several processes

Options:
  -h, --help  Show this text
  --version   Show the version

'accelerant COMMAND --help' shows the options of a command.
)";

// Files that we open must not become standard streams of ranks by chance.
void open_missing_standard_streams() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::open("/dev/null", O_RDWR)) {
    if (fd <= STDERR_FILENO) continue;
    ::close(fd);
    return;
  }
}

int run(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "launch") return accelerant::cli::launch_command(argc - 1, argv + 1);
  if (name == "test") return accelerant::cli::test_command(argc - 1, argv + 1);
  if (name == "env") return accelerant::cli::env_command(argc - 1, argv + 1);
  if (name == "inspect") return accelerant::cli::inspect_command(argc - 1, argv + 1);
  if (name == "verify") return accelerant::cli::verify_command(argc - 1, argv + 1);
  if (name == "merge-weights") return accelerant::cli::merge_weights_command(argc - 1, argv + 1);
  if (name == "convert") return accelerant::cli::convert_command(argc - 1, argv + 1);
  if (name == "merge-traces") return accelerant::cli::merge_traces_command(argc - 1, argv + 1);
  if (name == "--version") {
    std::printf("accelerant %s\n", ACCELERANT_VERSION);
    return 0;
  }
  if (name == "-h" || name == "--help" || name == "help") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (!name.empty()) {
    std::fprintf(stderr, "accelerant: there is no command '%s'\n\n", argv[1]);
  }
  std::fputs(kHelp, name.empty() ? stdout : stderr);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  open_missing_standard_streams();
  try {
    return run(argc, argv);
  } catch (const accelerant::launch::StartError& error) {
    std::fprintf(stderr, "accelerant: %s\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "accelerant: %s\n", error.what());
    return 2;
  }
}
