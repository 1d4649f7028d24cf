// Process groups and a data-parallel model in a single process: all of NCCL that a machine with one
// GPU can show, and a way to try a program before it runs on more processes.
#include "accelerator/processes/training.h"
#include "support/count_exchanges.h"

namespace processes_test {
namespace {

using accelerant::dist::Backend;

Run alone_with(Backend backend) {
  Run run;
  run.options = {.cpu = backend == Backend::gloo,
                 .process_group = {.backend = backend, .with_one_process = true}};
  run.tolerance = backend == Backend::gloo ? 1e-6 : 1e-5;  // a GPU sums in a different order
  return run;
}

// Creates one Accelerator after another, each with its own groups, and makes exchanges beyond the
// training. A RANK_TEST also requires that the process then exits with 0.
void live_through_groups(Backend backend) {
  for (int life = 0; life < 2; ++life) {
    const CountExchanges counted;
    const Run run = alone_with(backend);
    expect_same_as_one_process(run, mlp);
    EXPECT_GE(counted.calls_of("allreduce_"), run.steps) << "the model is not data-parallel";
  }

  Accelerator accelerator(alone_with(backend).options);
  ASSERT_TRUE(accelerator.world().is_connected());
  const auto values = torch::arange(4, torch::kFloat).to(accelerator.device());
  EXPECT_TRUE(torch::equal(accelerator.gather(values), values));
  EXPECT_TRUE(torch::equal(accelerator.reduce(values), values));
  EXPECT_TRUE(torch::equal(accelerant::dist::broadcast(accelerator.world(), values), values));
  accelerator.wait_for_everyone();
}

// Ends with the process, after main has returned.
void leave_groups_to_the_end(Backend backend) {
  static Accelerator accelerator(alone_with(backend).options);
  accelerator.wait_for_everyone();
}

TEST(OneProcess, NeedsNoLauncher) {
  const auto world = accelerant::dist::World::join({}, {.with_one_process = true});
  EXPECT_TRUE(world->is_connected());
}

RANK_TEST(OneProcess, LifeOfGlooGroups, 1) { live_through_groups(Backend::gloo); }
RANK_TEST(OneProcess, GlooGroupsUntilTheEnd, 1) { leave_groups_to_the_end(Backend::gloo); }

RANK_TEST(OneProcess, LifeOfNcclGroups, 1) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  live_through_groups(Backend::nccl);
}
RANK_TEST(OneProcess, NcclGroupsUntilTheEnd, 1) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  leave_groups_to_the_end(Backend::nccl);
}

}  // namespace
}  // namespace processes_test
