// One run at a time trains in a project. resume/one_run_test.py starts several.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "accelerator/saved_training.h"
#include "core/files.h"
#include "store/lock_holder.h"

namespace {

using namespace accelerator_test;
using accelerant::Accelerator;
using accelerant::entries_of;
using accelerant::path_exists;
using Names = std::vector<std::string>;

// A process that holds the lock of the project until it is destroyed.
class OtherRun {
 public:
  explicit OtherRun(const TempFolder& folder) {
    pid_ = ::fork();
    if (pid_ == 0) {
      folder.write("unnamed", to_text(accelerant::checkpoint::this_process_as_holder()));
      accelerant::rename_path(folder.path("unnamed"), folder.path("accelerant.lock"));
      while (true) ::pause();
    }
    while (!path_exists(folder.path("accelerant.lock"))) ::usleep(1000);
  }
  ~OtherRun() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  OtherRun(const OtherRun&) = delete;
  OtherRun& operator=(const OtherRun&) = delete;

  std::string name() const { return "got process " + std::to_string(pid_) + " on "; }

 private:
  pid_t pid_;
};

void save_once(const TempFolder& folder) {
  Training training(in_project(folder));
  training.step();
  training.accelerator.save_state();
}

TEST(OneRun, TheProjectIsLockedWhileAnAcceleratorTrains) {
  const TempFolder folder;
  {
    Training training(in_project(folder));
    EXPECT_EQ(entries_of(folder.path()), Names{"accelerant.lock"});
    training.step();
    training.accelerator.save_state();
    training.accelerator.save_state({.async = true});
    EXPECT_TRUE(path_exists(folder.path("accelerant.lock")));
  }
  EXPECT_EQ(entries_of(folder.path()), Names{"checkpoints"});
}

TEST(OneRun, ASecondTrainingIsRefusedAtOnce) {
  const TempFolder folder;
  save_once(folder);
  const OtherRun other(folder);
  for (const char* resume : {"no", "auto", "restart"}) {
    expect_error(
        [&] { Training training(in_project(folder, resume)); },
        {"The project " + folder.path() + " is in use: expected one run at a time", other.name(),
         "wait until that process ends, end it, or use another folder", "is a copy, remove "});
  }
  EXPECT_EQ(entries_of(folder.path()), (Names{"accelerant.lock", "checkpoints"}));
}

TEST(OneRun, AnEvaluationBesideATrainingOnlyReads) {
  const TempFolder folder;
  save_once(folder);
  accelerant::make_folders(folder.path("checkpoints/checkpoint_1.0123456789ab.tmp"));
  const OtherRun other(folder);
  Accelerator accelerator(in_project(folder, "auto"));
  torch::nn::Linear net(2, 3);
  auto model = accelerator.prepare(net);
  EXPECT_TRUE(accelerator.resumed());
  EXPECT_EQ(entries_of(folder.path("checkpoints")),
            (Names{"checkpoint_0", "checkpoint_1.0123456789ab.tmp"}));
  // The same program may not save there.
  torch::optim::SGD sgd(net->parameters(), 0.1);
  expect_error([&] { accelerator.prepare(sgd); }, {"is in use", other.name()});
}

TEST(OneRun, LoadingNeedsNoLock) {
  const TempFolder folder;
  save_once(folder);
  Training training(on_cpu());
  const OtherRun other(folder);
  EXPECT_EQ(training.accelerator.load_state(folder.path("checkpoints/checkpoint_0")).updates, 1);
  expect_error([&] { Accelerator(in_project(folder)).save_state(); }, {"is in use", other.name()});
}

TEST(OneRun, ACheckpointThatComesBetweenTheFirstLookAndTheLockIsNoticed) {
  const TempFolder folder;
  save_once(folder);
  Accelerator accelerator(in_project(folder, "auto"));
  torch::nn::Linear net(2, 3);
  auto model = accelerator.prepare(net);
  run_in_shell("cp -r '" + folder.path("checkpoints/checkpoint_0") + "' '" +
               folder.path("checkpoints/checkpoint_1") + "'");
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  expect_error([&] { accelerator.prepare(sgd); },
               {"Another run has just saved to the project", "start this program again"});
}

TEST(OneRun, SeveralAcceleratorsOfAProcessShareTheLock) {
  const TempFolder folder;
  Training first(in_project(folder));
  {
    Training second(in_project(folder));
    second.step();
    second.accelerator.save_state();
  }
  EXPECT_TRUE(path_exists(folder.path("accelerant.lock")));
  first.step();
  EXPECT_NO_THROW(first.accelerator.save_state());
}

TEST(OneRun, ARunThatHasLostItsProjectSavesNoModelIntoIt) {
  const TempFolder folder;
  const TempFolder elsewhere;
  Training training(in_project(folder));
  const auto save_to = [&](const std::string& path) {
    training.accelerator.save_model(training.model, path);
  };
  save_to(folder.path("models/last"));
  const auto other = accelerant::checkpoint::this_process_as_holder();  // with an id of its own
  accelerant::rename_path(folder.write("unnamed", to_text(other)), folder.path("accelerant.lock"));
  for (const char* name : {"models/last", "models/new", "models/../another", ""}) {
    expect_error([&] { save_to(folder.path(name)); },
                 {"The project " + folder.path() + " belongs to another run now", text_of(other)});
  }
  EXPECT_EQ(entries_of(folder.path("models")), Names{"last"});
  EXPECT_NO_THROW(save_to(elsewhere.path("model")));
}

TEST(OneRun, AFolderOfItsOwnIsLockedWhileItIsSaved) {
  const TempFolder folder;
  Training training(on_cpu());
  training.accelerator.save_state(folder.path("last"));
  EXPECT_EQ(entries_of(folder.path()), Names{"last"});
  accelerant::checkpoint::LockHolder other = accelerant::checkpoint::this_process_as_holder();
  other.pid = 1;  // lives, whatever its start
  std::string text;
  std::getline(std::ifstream("/proc/1/stat"), text);
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  for (int field = 3; field < 22; ++field) fields >> text;
  fields >> other.start;
  folder.write("last.lock", to_text(other));
  expect_error([&] { training.accelerator.save_state(folder.path("last")); },
               {"was not saved: The checkpoint " + folder.path("last") + " is in use"});
  run_in_shell("rm '" + folder.path("last.lock") + "'");
  EXPECT_NO_THROW(training.accelerator.save_state(folder.path("last")));
}

TEST(OneRun, AProjectThatCannotBeLookedIntoIsNotEmpty) {
  const TempFolder folder;
  ASSERT_EQ(::symlink("checkpoints", folder.path("checkpoints").c_str()), 0);
  for (const char* resume : {"auto", "restart"}) {
    expect_error([&] { Training training(in_project(folder, resume)); },
                 {"checkpoints cannot be accessed: Too many levels of symbolic links"});
  }
}

}  // namespace
