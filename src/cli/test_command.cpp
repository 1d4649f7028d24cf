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

}  // namespace

int test_command(int argc, char** argv) {
  const auto app =
      make_parser("test", "[OPTIONS]", "Checks that processes of this machine can train together.");
  std::string num_processes;
  launch::LaunchOptions options = {.standalone = true};
  app->add_option(both_spellings("--num-processes"), num_processes,
                  "Processes: a number, gpu, cpu or auto. Default: one for each GPU, or 2")
      ->option_text("N");
  app->add_flag("--cpu", options.cpu, "Use the CPU even where there are GPUs");
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return exit_code_of(*app, error);
  }
  const auto helper = find_helper("accelerant-selftest");
  if (!helper) {
    throw Error(ErrorDetails{.problem = "accelerant-selftest is not beside this program",
                             .hint = "build or install it: it is a part of Accelerant"});
  }
  options.command = {*helper};
  options.num_processes = num_processes.empty()
                              ? default_processes(options.cpu)
                              : launch::count_processes(num_processes, 1, options.cpu);
  const launch::LaunchResult result = launch::launch(options);
  if (result.exit_code == 0) {
    std::puts("Test is a success! You are ready for your distributed training!");
  }
  return result.exit_code;
}

}  // namespace accelerant::cli
