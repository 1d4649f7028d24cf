// Resuming by several processes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "accelerator/saved_training.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerator_test;

accelerant::AcceleratorOptions in_working_folder(const std::string& resume) {
  auto options = on_cpu();
  options.project = {.dir = "project", .resume = resume};
  return options;
}

// Each process has its own disk, and one of them lacks its own part.
RANK_TEST(ResumeByRanks, APartThatOneProcessCannotReadIsAnErrorInAll, 2) {
  // Both ranks have the same port, and no other test has it.
  const std::string shared = testing::TempDir() + "accelerant-resume-" + std::getenv("MASTER_PORT");
  run_in_shell("mkdir -p '" + shared + "'");
  ASSERT_EQ(chdir(shared.c_str()), 0);
  {
    Training training(in_working_folder("no"));
    training.step();
    training.accelerator.save_state();
    training.accelerator.wait_for_everyone();
  }
  const TempFolder own;
  if (rank() == 1) {
    run_in_shell("cp -r '" + shared + "/project' '" + own.path() + "' && rm '" + own.path() +
                 "'/project/checkpoints/*/rank_1.*");
    ASSERT_EQ(chdir(own.path().c_str()), 0);
  }
  const std::string error = whole_error_of([] { Training training(in_working_folder("auto")); });
  EXPECT_TRUE(contains(error, "rank_1")) << error;
  ASSERT_EQ(chdir("/"), 0);
  if (rank() == 0) run_in_shell("rm -r '" + shared + "'");
}

}  // namespace
