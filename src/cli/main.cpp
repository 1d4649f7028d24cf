// The command `accelerant`. It links no libtorch, so it starts in milliseconds; helper programs
// beside it do what needs libtorch.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerant/version.h"
#include "cli/commands.h"
#include "cli/help_text.h"
#include "cli/messages.h"
#include "cli/suggestion.h"
#include "core/log_level.h"
#include "launch/start_error.h"

namespace accelerant::cli {
namespace {

struct Command {
  const char* name;
  int (*run)(int argc, char** argv);
  const char* summary;
  bool starts_processes = false;  // which check the environment themselves
};

constexpr Command kCommands[] = {
    {"launch", launch_command, "Start a program in one or more processes and watch over them",
     true},
    {"test", test_command, "Check that processes on this machine can train together", true},
    {"env", env_command, "Show what a bug report should contain"},
    {"estimate-memory", estimate_memory_command,
     "Estimate how much memory a model takes to load, to train and to use"},
    {"inspect", inspect_command,
     "Show what is in a project, a checkpoint, a model or a file of tensors"},
    {"verify", verify_command, "Check checkpoints, a model or a file for damage"},
    {"merge-weights", merge_weights_command, "Merge the files of a sharded model into one"},
    {"convert", convert_command, "Write a model with another data type, format or shard size"},
    {"merge-traces", merge_traces_command,
     "Merge the profiles of several processes into one trace"},
};

std::string help() {
  const std::size_t width = help_width();
  std::vector<std::pair<std::string, std::string>> commands;
  for (const Command& command : kCommands) commands.emplace_back(command.name, command.summary);
  return "Usage: accelerant COMMAND [OPTIONS]\n\n" +
         wrapped("Runs programs built with Accelerant, and looks after what they save.", width) +
         "\n\nCommands:\n" + definition_list(commands, width) + "\nOptions:\n" +
         definition_list({{"-h, --help", "Show this text"}, {"--version", "Show the version"}},
                         width) +
         "\n" + wrapped("'accelerant COMMAND --help' shows the options of a command.", width) +
         "\n";
}

const Command* find_command(std::string_view name) {
  const auto found = std::ranges::find(kCommands, name, &Command::name);
  return found == std::end(kCommands) ? nullptr : found;
}

UsageError unknown_command(const std::string& name) {
  constexpr const char* kTryHelp = "\nTry 'accelerant --help'.";
  if (name.starts_with('-')) {
    const auto nearest = nearest_name(
        name.substr(std::min(name.find_first_not_of('-'), name.size())), {"help", "version"});
    return {"unknown option '" + name + "'; " +
            (nearest ? "did you mean --" + *nearest + "?"
                     : "options follow the command, as in: accelerant launch " + name + " ...") +
            kTryHelp};
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  std::string message = "unknown command '" + name + "'";
  if (name.find('/') != std::string::npos) {
    message += "; to start a program, write: accelerant launch " + name;
  } else if (const auto nearest = nearest_name(name, names)) {
    message += "; did you mean " + *nearest + "?";
  }
  return {message + kTryHelp};
}

// `accelerant help`, or `accelerant help COMMAND`.
int help_command(int argc, char** argv) {
  if (argc < 2) {
    std::fputs(help().c_str(), stdout);
    return 0;
  }
  const Command* command = find_command(argv[1]);
  if (command == nullptr) throw unknown_command(argv[1]);
  char flag[] = "--help";
  char* arguments[] = {argv[1], flag, nullptr};
  return command->run(2, arguments);
}

int run(int argc, char** argv) {
  const std::string name = argc > 1 ? argv[1] : "";
  if (name.empty()) {
    std::fputs(help().c_str(), stderr);
    std::fputc('\n', stderr);
    throw UsageError{"missing COMMAND"};
  }
  if (name == "--version") {
    std::printf("accelerant %s\n", ACCELERANT_VERSION);
    return 0;
  }
  if (name == "-h" || name == "--help" || name == "help") return help_command(argc - 1, argv + 1);
  const Command* command = find_command(name);
  if (command == nullptr) throw unknown_command(name);
  if (!command->starts_processes) check_log_level();
  return command->run(argc - 1, argv + 1);
}

// Files that we open must not become standard streams of ranks by chance.
void open_missing_standard_streams() {
  for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::open("/dev/null", O_RDWR)) {
    if (fd <= STDERR_FILENO) continue;
    ::close(fd);
    return;
  }
}

}  // namespace
}  // namespace accelerant::cli

int main(int argc, char** argv) {
  using namespace accelerant::cli;
  open_missing_standard_streams();
  try {
    return run(argc, argv);
  } catch (const UsageError& error) {
    show_error(error.message);
    return kUsageError;
  } catch (const accelerant::launch::StartError& error) {
    show_error(error.what());
    return error.exit_code();
  } catch (const std::bad_alloc&) {
    show_error("the memory does not suffice");
    return kFailure;
  } catch (const std::exception& error) {
    show_error(error.what());
    return kFailure;
  }
}
