#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <regex>
#include <string>

#include "accelerant/core/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "core/launch_contract.h"
#include "launch/launcher.h"
#include "launch/process_count.h"
#include "launch/start_error.h"

namespace accelerant::cli {
namespace {

constexpr const char* kPlacementGroup = "Processes";
constexpr const char* kFailureGroup = "Failures";

struct Arguments {
  launch::LaunchOptions options = {};
  std::string num_processes = {};
  double monitor_interval = 0.1;
  double grace = 30;
  double saving_grace = 600;
};

void add_placement(CLI::App& app, Arguments& arguments) {
  const std::string group = kPlacementGroup;
  auto& options = arguments.options;
  app.add_option(both_spellings("--num-processes"), arguments.num_processes,
                 "Processes on all machines together: a number, gpu (one for each GPU), cpu (one "
                 "for each processor) or auto (gpu if there are GPUs, else cpu). "
                 "Default: one for each GPU, or 1 without GPUs")
      ->option_text("N")
      ->group(group);
  app.add_option(both_spellings("--num-machines"), options.num_machines,
                 "Number of machines; run this command on each of them. Default: 1")
      ->option_text("N")
      ->group(group);
  add_optional(app, "--machine-rank", options.machine_rank,
               "Which of the machines this is, from 0. Needed with several machines")
      ->option_text("N")
      ->group(group);
  app.add_option(both_spellings("--main-process-ip"), options.main_process_ip,
                 "Address of machine 0. Needed with several machines, unless MASTER_ADDR is set. "
                 "Default: 127.0.0.1 on a single machine")
      ->option_text("ADDRESS")
      ->group(group);
  add_optional(app, "--main-process-port", options.main_process_port,
               "Port on machine 0 where the processes meet; 0 takes a free one. Default: a free "
               "one on a single machine, else MASTER_PORT, or 29500")
      ->option_text("PORT")
      ->group(group);
  app.add_flag("--standalone", options.standalone,
               "Use this machine alone and a free port, and ignore the four options above")
      ->group(group);
  app.add_option(both_spellings("--secret-file"), options.secret_file,
                 "File with the secret of the run, the same on all machines: only processes that "
                 "know it can join. Make one with: (umask 077; head -c 32 /dev/urandom > FILE). "
                 "Default: a new secret on a single machine, else ACCELERANT_SECRET_FILE, or none")
      ->option_text("FILE")
      ->group(group);
}

void add_training(CLI::App& app, Arguments& arguments) {
  const std::string group = "Training";
  auto& options = arguments.options;
  add_optional(app, "--mixed-precision", options.mixed_precision,
               "no, fp16 or bf16; sets ACCELERATE_MIXED_PRECISION. Default: up to the program")
      ->option_text("PRECISION")
      ->group(group);
  add_optional(app, "--gradient-accumulation-steps", options.gradient_accumulation_steps,
               "Batches per update; sets ACCELERATE_GRADIENT_ACCUMULATION_STEPS. Default: up to "
               "the program")
      ->option_text("N")
      ->group(group);
  app.add_flag("--cpu", options.cpu,
               "Train on the CPU even if there are GPUs; sets ACCELERATE_USE_CPU")
      ->group(group);
  add_optional(app, "--num-cpu-threads-per-process", options.num_cpu_threads_per_process,
               "Threads of each process; sets OMP_NUM_THREADS. Default: OMP_NUM_THREADS, or the "
               "processors of this machine divided among its processes")
      ->option_text("N")
      ->group(group);
  app.add_flag("--debug", options.debug,
               "Check that all processes call the same collectives; sets ACCELERATE_DEBUG_MODE")
      ->group(group);
}

void add_failures(CLI::App& app, Arguments& arguments) {
  const std::string group = kFailureGroup;
  app.add_option(both_spellings("--max-restarts"), arguments.options.max_restarts,
                 "How often to restart all processes of this machine after one has failed. "
                 "Default: 0")
      ->option_text("N")
      ->group(group);
  app.add_option("--grace", arguments.grace,
                 "How long processes may take to stop before they are killed. Default: 30 s")
      ->option_text("SECONDS")
      ->group(group);
  app.add_option(both_spellings("--saving-grace"), arguments.saving_grace,
                 "The same for processes that are saving their state because they were asked to "
                 "stop. Default: 600 s")
      ->option_text("SECONDS")
      ->group(group);
  app.add_option(both_spellings("--monitor-interval"), arguments.monitor_interval,
                 "How often to look for processes that have ended, on systems whose kernel does "
                 "not report it. Default: 0.1 s")
      ->option_text("SECONDS")
      ->group(group);
}

void add_output(CLI::App& app, Arguments& arguments) {
  const std::string group = "Output";
  auto& options = arguments.options;
  app.add_option(both_spellings("--log-dir"), options.log_dir,
                 "Folder for log files: stdout.log, stderr.log and error.json in "
                 "FOLDER/RUN/attempt_<n>/<rank>. Nothing is overwritten: a second run of the same "
                 "name gets RUN_2. Default: no log files")
      ->option_text("FOLDER")
      ->group(group);
  app.add_option("--tee", options.tee,
                 "What goes to the screen and to log files: 0 nothing, 1 standard output, 2 "
                 "standard error, 3 both; or by local rank, such as 0:3,1:1. Default: 3 with "
                 "--log-dir alone, else 0")
      ->option_text("MASK")
      ->group(group);
  app.add_option("--redirect,--redirects", options.redirect,
                 "What goes to log files only; written like --tee. Default: 0")
      ->option_text("MASK")
      ->group(group);
  app.add_option(both_spellings("--run-id"), options.run_id,
                 "Name of this run, the same on all machines; sets TORCHELASTIC_RUN_ID and names "
                 "the folder in --log-dir. Default: date, time and process id")
      ->option_text("NAME")
      ->group(group);
  app.add_flag("--quiet", options.quiet, "Print only what the processes write")->group(group);
}

int port_in(const std::string& text) {
  int port = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error == std::errc() && stop == text.data() + text.size() && port > 0 && port < 65536)
    return port;
  throw Error(ErrorDetails{
      .problem = "MASTER_PORT", .expected = "a port from 1 to 65535", .got = "'" + text + "'"});
}

// Scripts of clusters usually export MASTER_ADDR and MASTER_PORT. On a single machine they are more
// likely left over from something else.
void complete_from_environment(launch::LaunchOptions& options) {
  if (options.num_machines <= 1) return;
  const char* address = std::getenv("MASTER_ADDR");
  const char* port = std::getenv("MASTER_PORT");
  if (options.main_process_ip.empty() && address != nullptr) options.main_process_ip = address;
  if (!options.main_process_port && port != nullptr) options.main_process_port = port_in(port);
  const char* secret = std::getenv(kSecretFileVariable);
  if (options.secret_file.empty() && secret != nullptr) options.secret_file = secret;
}

// An option of the launcher behind the program's name reaches the program, which mostly ignores it.
// Only the options that programs rarely have themselves are looked for, and not behind a program's
// own "--".
void warn_of_misplaced_options(const CLI::App& app, const std::vector<std::string>& command) {
  const auto end = std::ranges::find(command, "--");
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group() != kPlacementGroup && option->get_group() != kFailureGroup) continue;
    for (const std::string& name : option->get_lnames()) {
      const auto is_written = [&](const std::string& argument) {
        return argument == "--" + name || argument.starts_with("--" + name + "=");
      };
      if (std::none_of(command.begin() + 1, end, is_written)) continue;
      show_warning("--" + name +
                   " is behind the program's name, so it goes to the program, not to "
                   "the launcher. To use it here, write: accelerant launch --" +
                   name + " ... " + command.front() + "; to silence this, write -- before " +
                   command.front());
    }
  }
}

std::vector<std::string> command_in(const CLI::App& app, bool quiet) {
  std::vector<std::string> command = app.remaining();
  const bool is_marked = !command.empty() && command.front() == "--";
  if (is_marked) command.erase(command.begin());
  if (!is_marked && !command.empty() && command.front().starts_with('-')) {
    throw unknown_option(app, command.front());
  }
  if (command.empty()) throw missing_arguments(app, {"PROGRAM"});
  if (!is_marked && !quiet) warn_of_misplaced_options(app, command);
  return command;
}

// Errors of the launcher name fields of LaunchOptions, or both the field and the option. Here they
// are options: machine_rank is --machine-rank.
std::string with_option_names(const CLI::App& app, std::string message) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& field : option->get_lnames()) {
      if (field.find('_') == std::string::npos) continue;
      std::string name = "--" + field;
      std::ranges::replace(name, '_', '-');
      const std::regex pattern("\\b" + field + "\\b( \\(" + name + "\\))?");
      message = std::regex_replace(message, pattern, name);
    }
  }
  return message;
}

}  // namespace

int launch_command(int argc, char** argv) {
  Arguments arguments;
  const auto app = make_parser(
      "launch", "[OPTIONS] [--] PROGRAM [ARGUMENTS]",
      "Starts a program in one or more processes that train together, and watches over them. When "
      "one fails, the others are stopped, and the last lines on the screen say why. Everything "
      "after PROGRAM is passed to it.\n\n"
      "Exit code: 0 if all processes succeed, else that of the process that failed first (128 + "
      "signal if a signal ended it); 128 + signal if a signal stopped the launcher; 75 if all "
      "processes saved their state and stopped on request (SIGTERM, SIGUSR1); 126 or 127 if the "
      "program cannot be started; 2 if the launch itself cannot work.");
  app->prefix_command();
  add_placement(*app, arguments);
  add_training(*app, arguments);
  add_failures(*app, arguments);
  add_output(*app, arguments);
  if (const auto exit_code = parse(*app, argc, argv)) return *exit_code;
  launch::LaunchOptions& options = arguments.options;
  options.command = command_in(*app, options.quiet);
  options.monitor_interval = std::chrono::duration<double>(arguments.monitor_interval);
  options.grace = std::chrono::duration<double>(arguments.grace);
  options.saving_grace = std::chrono::duration<double>(arguments.saving_grace);
  try {
    complete_from_environment(options);
    options.num_processes = launch::count_processes(
        arguments.num_processes, options.standalone ? 1 : options.num_machines, options.cpu);
    return launch::launch(options).exit_code;
  } catch (const launch::StartError&) {
    throw;
  } catch (const Error& error) {
    // Whatever the reason, nothing was started: exit code 1 would look like that of the program.
    throw UsageError{with_option_names(*app, error.what())};
  }
}

}  // namespace accelerant::cli
