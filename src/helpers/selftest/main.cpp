// One rank of `accelerant test`.
#include <cstdio>
#include <exception>

#include "accelerant/accelerator/accelerator.h"
#include "helpers/selftest/checks.h"

namespace {

void run_checks() {
  using namespace accelerant::selftest;
  check_launch_contract();
  accelerant::Accelerator accelerator;
  const auto count = accelerator.num_processes();
  accelerator.print(count, count == 1 ? "process on" : "processes on", accelerator.device());
  const auto done = [&](const char* what) { accelerator.print("ok:", what); };
  done("environment and socket from the launcher");
  check_exchanges(accelerator);
  done("exchanges between processes");
  check_loaders(accelerator);
  done("every sample goes to one process");
  check_training(accelerator);
  done("training gives the same model as one process");
  check_loss_scaling();
  done("an overflow in one process skips the step in all");
}

}  // namespace

int main() {
  try {
    run_checks();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
