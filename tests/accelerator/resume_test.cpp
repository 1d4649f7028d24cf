// Resuming in one process: by object, by loops over epochs and loaders, and what is missing.
#include <gtest/gtest.h>

#include "accelerator/saved_training.h"
#include "support/gathered_log.h"

namespace {

using namespace accelerator_test;
using accelerant::Accelerator;

TEST(Resume, NothingToResumeIsANewStart) {
  const TempFolder folder;
  Training training(in_project(folder, "auto"));
  EXPECT_EQ(*training.accelerator.epochs(3).begin(), 0);
}

// Where the newest checkpoint was found; "nothing" for a new start.
std::string resumed_from(const TempFolder& folder) {
  const auto found = Training(in_project(folder, "auto")).accelerator.resumed();
  return found ? found->path : "nothing";
}

TEST(Resume, ALostManifestIsNoNewStart) {
  const TempFolder folder;
  const std::string path = Training(in_project(folder)).accelerator.save_state();
  run_in_shell("rm '" + path + "/manifest.json'");
  expect_error([&] { resumed_from(folder); },
               {"No usable checkpoint in", path + " cannot be used:", "manifest.json"});
  run_in_shell("mkdir '" + path + "/manifest.json'");
  expect_error([&] { resumed_from(folder); }, {"No usable checkpoint in", "got a folder"});
  run_in_shell("rm -r '" + path + "/'*");  // all files are lost
  expect_error([&] { resumed_from(folder); }, {"No usable checkpoint in", path});
  run_in_shell("rm -r '" + path + "'");
  EXPECT_EQ(resumed_from(folder), "nothing");
}

TEST(Resume, ALostManifestMeansTheCheckpointBefore) {
  const TempFolder folder;
  const GatheredLog log;
  std::string first, second;
  {
    Training training(in_project(folder));
    first = training.accelerator.save_state();
    second = training.accelerator.save_state();
  }
  run_in_shell("rm '" + second + "/manifest.json'");
  EXPECT_EQ(resumed_from(folder), first);
  EXPECT_TRUE(contains(log.text(), second + " cannot be used:"));
  EXPECT_TRUE(contains(log.text(), "Trying the checkpoint before it."));
}

TEST(Resume, ATrainingThatBeginsAnewNamesACheckpointWithoutAManifest) {
  const TempFolder folder;
  const GatheredLog log;
  run_in_shell("mkdir -p '" + folder.path("checkpoints/checkpoint_3") + "'");
  Training(in_project(folder, "restart")).step();
  EXPECT_TRUE(contains(log.text(), "checkpoints of an earlier one, up to " +
                                       folder.path("checkpoints/checkpoint_3")));
}

// Python's Accelerate gives them the same names, but they are loaded by their path only.
TEST(Resume, FoldersOfPythonAndFilesAreNoCheckpointsToResumeFrom) {
  const TempFolder folder;
  run_in_shell("mkdir -p '" + folder.path("checkpoints/checkpoint_0") + "'");
  for (const char* name : {"model.safetensors", "optimizer.bin", "random_states_0.pkl"}) {
    folder.write(std::string("checkpoints/checkpoint_0/") + name, "");
  }
  folder.write("checkpoints/checkpoint_1", "a file");
  EXPECT_EQ(resumed_from(folder), "nothing");
}

TEST(Resume, ObjectsMayBePreparedOneByOne) {
  const TempFolder folder;
  Training first(in_project(folder));
  first.step();
  first.step();
  first.accelerator.save_state();

  Accelerator accelerator(in_project(folder, "auto"));
  torch::nn::Linear net(2, 3);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1).momentum(0.9));
  torch::optim::StepLR decay(sgd, 2, 0.5);
  const auto optimizer = accelerator.prepare_optimizer(sgd);  // before its model
  const auto model = accelerator.prepare_model(net);
  EXPECT_TRUE(net->weight.equal(first.net->weight));
  const auto loader = accelerator.prepare_data_loader(first.batches);
  const auto scheduler = accelerator.prepare_scheduler(decay);
  EXPECT_DOUBLE_EQ(static_cast<torch::optim::SGDOptions&>(sgd.param_groups()[0].options()).lr(),
                   rate_of(first));
  first.step();
  accelerator.backward(model(torch::ones({1, 2})).sum());
  optimizer.step();
  EXPECT_TRUE(net->weight.equal(first.net->weight));
}

TEST(Resume, WhatWasNeverPreparedIsMissed) {
  const TempFolder folder;
  Training(in_project(folder)).accelerator.save_state();
  Accelerator accelerator(in_project(folder, "auto"));
  torch::nn::Linear net(2, 3);
  const auto model = accelerator.prepare(net);
  expect_error(
      [&] {
        accelerator.backward(model(torch::ones({1, 2})).sum());
      },
      {"as many optimizers as in the checkpoint (1)", "0 prepared"});
}

TEST(Resume, LoopsOverEpochsGoOn) {
  const TempFolder folder;
  const auto run = [&](const std::string& resume, int64_t stop_after) {
    std::vector<std::string> seen;
    Training training(in_project(folder, resume));
    int64_t batches = 0;
    const auto loop = [&](const std::string& name, int64_t epochs) {
      for (const int64_t epoch : training.accelerator.epochs(epochs)) {
        for (auto&& batch : training.loader) {
          (void)batch;
          training.step();
          seen.push_back(name + std::to_string(epoch) + ":" +
                         std::to_string(training.loader.position()));
          if (++batches == stop_after) {
            training.accelerator.save_state();
            return true;
          }
        }
      }
      return false;
    };
    if (!loop("a", 2)) loop("b", 3);
    return seen;
  };
  const auto whole = run("no", -1);
  ASSERT_EQ(whole.size(), 20U);
  for (int64_t stop = 1; stop <= 20; ++stop) {
    run_in_shell("rm -rf '" + folder.path("checkpoints") + "'");
    auto seen = run("no", stop);
    const auto rest = run("auto", -1);
    seen.insert(seen.end(), rest.begin(), rest.end());
    EXPECT_EQ(seen, whole) << "after " << stop;
  }
}

// Without epochs() nothing shows where an epoch ends, but the loader knows its position.
TEST(Resume, ALoopOfTheProgramsOwnGoesOn) {
  const TempFolder folder;
  Training first(in_project(folder));
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto&& batch : first.loader) {
      (void)batch;
      first.step();
      if (epoch == 1 && first.loader.position() == 4) {
        first.accelerator.save_state();
        break;
      }
    }
  }
  Training second(in_project(folder, "auto"));
  std::vector<int64_t> positions;
  for (auto&& batch : second.loader) {
    (void)batch;
    positions.push_back(second.loader.position());
  }
  EXPECT_EQ(positions, (std::vector<int64_t>{6, 8}));
}

// Objects are identified by their order of preparation, in which destroyed objects count too.
TEST(Resume, AModelThatIsGoneTakesNoOnesPlace) {
  const TempFolder folder;
  const auto prepare_for_a_moment = [](Accelerator& accelerator) {
    torch::nn::Linear other(2, 3);
    const auto model = accelerator.prepare(other);
  };
  Accelerator first(in_project(folder));
  prepare_for_a_moment(first);
  torch::nn::Linear net(2, 3);
  const auto model = first.prepare(net);
  first.save_state();

  Accelerator second(in_project(folder, "auto"));
  prepare_for_a_moment(second);
  torch::nn::Linear again(2, 3);
  const auto resumed = second.prepare(again);
  EXPECT_TRUE(again->weight.equal(net->weight));
  ASSERT_TRUE(second.resumed());
  EXPECT_EQ(second.resumed()->path, folder.path("checkpoints/checkpoint_0"));
}

// A loop over epochs may take its steps without a loader.
TEST(Resume, EpochsWithoutALoaderAreDoneWhenTrained) {
  const TempFolder folder;
  const auto run = [&](const std::string& resume, int64_t stop_after) {
    std::vector<int64_t> seen;
    Training training(in_project(folder, resume));
    for (const int64_t step : training.accelerator.epochs(5)) {
      training.step();
      seen.push_back(step);
      if (step == stop_after) {
        training.accelerator.save_state();
        break;
      }
    }
    return seen;
  };
  EXPECT_EQ(run("no", 2), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(run("auto", -1), (std::vector<int64_t>{3, 4}));
}

TEST(Resume, AfterARestartItIsTheDefault) {
  const TempFolder folder;
  auto options = in_project(folder);
  options.project.resume.reset();
  EXPECT_EQ(Accelerator(options).options().project.resume, "restart");
  EXPECT_EQ(Accelerator(options).options().project.save_on_preemption, false);
  EXPECT_EQ(Accelerator({.cpu = true}).options().project.resume, "no");
  expect_error([] { Accelerator({.cpu = true, .project = {.resume = "restart"}}); },
               {"\"restart\" needs a project"});
}

// The launcher names its launch: a restart resumes from what its own launch saved. A launch without
// a name, the default of torchrun, resumes from any.
TEST(Resume, ARestartGoesOnFromItsOwnLaunch) {
  const Variable rank("RANK", "0"), size("WORLD_SIZE", "1"), local_rank("LOCAL_RANK", "0");
  const auto resumes = [&](const char* saved_by, const char* restarted_by, const char* restarts) {
    const TempFolder folder;
    auto options = in_project(folder);
    options.project.resume.reset();
    {
      const Variable run("TORCHELASTIC_RUN_ID", saved_by);
      Training(options).accelerator.save_state();
    }
    const Variable run("TORCHELASTIC_RUN_ID", restarted_by);
    const Variable count("TORCHELASTIC_RESTART_COUNT", restarts);
    return Training(options).accelerator.resumed().has_value();
  };
  EXPECT_TRUE(resumes("monday", "monday", "1"));
  EXPECT_FALSE(resumes("monday", "monday", "0"));
  EXPECT_FALSE(resumes("monday", "tuesday", "1"));
  EXPECT_FALSE(resumes("none", "tuesday", "1"));
  EXPECT_TRUE(resumes("monday", "none", "1"));
}

}  // namespace
