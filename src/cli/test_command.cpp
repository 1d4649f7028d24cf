#include <cstdio>

#include "accelerant/core/error.h"
#include "cli/commands.h"
#include "cli/helper_program.h"
#include "cli/options.h"
#include "launch/launcher.h"
#include "launch/process_count.h"

namespace accelerant::cli {
namespace {

int64_t default_processes(bool cpu) {
  const int64_t gpus = cpu ? 0 : launch::count_gpus();
  return gpus > 0 ? gpus : 2;
}

std::string helper_to_run() {
  const auto helper = find_helper("accelerant-selftest");
  if (!helper) {
    throw Error(
        ErrorDetails{.problem = "accelerant-selftest, which is part of Accelerant, is missing",
                     .hint = "build or install it"});
  }
  if (const auto problem = loading_problem(*helper)) {
    throw Error("Cannot start accelerant-selftest: " + *problem);
  }
  return *helper;
}

}  // namespace

int test_command(int argc, char** argv) {
  const auto app = make_parser(
      "test", "[OPTIONS]",
      "Checks that processes on this machine can train together: it starts some, which exchange "
      "tensors, read data and train a small model.");
  std::string num_processes;
  launch::LaunchOptions options = {.standalone = true};
  app->add_option(
         both_spellings("--num-processes"), num_processes,
         "Number of processes, or gpu, cpu or auto, as for launch. Default: one for each GPU, or 2 "
         "without GPUs")
      ->option_text("N");
  app->add_flag("--cpu", options.cpu, "Use the CPU even if there are GPUs");
  if (const auto exit_code = parse(*app, argc, argv)) return *exit_code;
  try {
    options.num_processes = num_processes.empty()
                                ? default_processes(options.cpu)
                                : launch::count_processes(num_processes, 1, options.cpu);
  } catch (const Error& error) {
    throw UsageError{error.what()};
  }
  options.command = {helper_to_run()};
  const launch::LaunchResult result = launch::launch(options);
  if (result.exit_code == 0) {
    std::puts("Test is a success! You are ready for your distributed training!");
    return 0;
  }
  return result.signal != 0 ? result.exit_code : kFailure;
}

}  // namespace accelerant::cli
