// Shows what Accelerant does for a training on this machine: see director.cpp for what it runs, and
// plain_loop.cpp and accelerant_loop.cpp for the loops it compares.
#include <accelerant/watch/environment.h>

#include <cstdio>
#include <exception>

#include "data.h"
#include "director.h"
#include "interrupt.h"
#include "loops.h"
#include "options.h"
#include "recorder.h"

namespace demo {
namespace {

// One of the trainings, in a process that the demo has started. What it throws ends the process,
// so that `accelerant launch` gets to know the reason.
int train(const Options& options) {
  const auto data = load_data(options);
  Recorder recorder;
  const auto loop = options.train == "plain" ? train_plain : train_with_accelerant;
  Recorder::accuracy(loop(options, data, recorder));
  return 0;
}

int run_whole_demo(const Options& options) try {
  if (accelerant::dist::Environment::detect().use_distributed()) {
    throw UsageError{"start the demo without a launcher; it launches its processes itself"};
  }
  install_interrupt_handlers();
  return direct(options) ? 0 : 1;
} catch (const Interrupted& interrupted) {
  std::fprintf(stderr, "accelerant-demo: interrupted\n");
  return 128 + interrupted.signal;
} catch (const c10::Error& error) {
  std::fprintf(stderr, "accelerant-demo: %s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "accelerant-demo: %s\n", error.what());
  return 1;
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) try {
  const auto options = demo::parse_options(argc, argv);
  if (!options) return 0;
  return options->train.empty() ? demo::run_whole_demo(*options) : demo::train(*options);
} catch (const demo::UsageError& error) {
  std::fprintf(stderr, "accelerant-demo: %s\n", error.message.c_str());
  return 2;
}
