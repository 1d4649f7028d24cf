// Mistakes in saving and resuming, and bad days.
#include <gtest/gtest.h>

#include <optional>

#include "accelerator/saved_training.h"
#include "mistakes/said.h"

namespace mistakes {
namespace {

using accelerant::Accelerator;
using accelerator_test::counting_loader;
using accelerator_test::in_project;
using accelerator_test::on_cpu;
using accelerator_test::OneWeight;
using accelerator_test::scalar;
using accelerator_test::Scale;
using accelerator_test::Training;

TEST(Mistakes, AProjectThatCannotBeWrittenTo) {
  const TempFolder folder;
  const std::string file = folder.write("file", "");
  auto options = on_cpu();
  options.project = {.dir = file + "/runs/first"};
  const std::string said = said_by([&] { Accelerator accelerator(options); });
  EXPECT_TRUE(contains(said, "project.dir cannot be used to save"));
  EXPECT_TRUE(contains(said, file));
  EXPECT_TRUE(contains(said, "set another project.dir"));
}

// One weight, a cosine over `total` updates, and a project.
struct Cosine {
  Cosine(accelerant::AcceleratorOptions options, int64_t total)
      : accelerator(std::move(options)),
        sgd(net->parameters(), 0.1),
        cosine(
            accelerant::optim::cosine_with_warmup(sgd, {.warmup_steps = 2, .total_steps = total})) {
    std::tie(model, optimizer, scheduler) = accelerator.prepare(net, sgd, cosine);
  }

  void step() {
    accelerator.backward(model(scalar(1)).sum());
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  }

  Accelerator accelerator;
  Scale net;
  torch::optim::SGD sgd;
  accelerant::optim::LrScheduler cosine;
  accelerant::Model<Scale> model;
  accelerant::Optimizer optimizer;
  accelerant::Scheduler scheduler;
};

void save_after_16_of_32(const TempFolder& folder) {
  Cosine before(in_project(folder), 32);
  for (int i = 0; i < 16; ++i) before.step();
  before.accelerator.save_state();
}

TEST(Mistakes, AScheduleThatIsReshapedByResuming) {
  const TempFolder folder;
  save_after_16_of_32(folder);
  const std::string said = said_by([&] {
    Cosine after(in_project(folder, "auto"), 16);
    after.step();
  });
  EXPECT_TRUE(contains(said, "total_steps = 32"));
  EXPECT_TRUE(contains(said, "total_steps = 16"));
  EXPECT_TRUE(contains(said, "ScheduleUnit::sample"));
}

TEST(Mistakes, TheScheduleThatWasSavedIsToldNothing) {
  const TempFolder folder;
  save_after_16_of_32(folder);
  EXPECT_EQ(said_by([&] {
              Cosine after(in_project(folder, "auto"), 32);
              after.step();
            }),
            "");
  auto options = in_project(folder, "auto");
  options.warnings.changed_schedule = false;
  EXPECT_EQ(said_by([&] { Cosine meant(options, 16); }), "");
}

// A kind without total_steps is identified by its rates.
TEST(Mistakes, AnotherKindOfSchedule) {
  const TempFolder folder;
  const auto train = [&](const std::string& resume, double gamma) {
    OneWeight t(in_project(folder, resume));
    auto decay = accelerant::optim::exponential(t.sgd, {.gamma = gamma});
    auto scheduler = t.accelerator.prepare(decay);
    t.backward(1);
    t.optimizer.step();
    scheduler.step();
    t.accelerator.save_state();
  };
  train("no", 0.9);
  EXPECT_EQ(said_by([&] { train("auto", 0.9); }), "");
  const std::string said = said_by([&] { train("auto", 0.5); });
  EXPECT_TRUE(contains(said, "schedule is not the one that was saved"));
}

TEST(Mistakes, ResumingAnotherModel) {
  const TempFolder folder;
  {
    Training before(in_project(folder));
    before.step();
    before.accelerator.save_state();
  }
  const std::string said = said_by([&] { Training after(in_project(folder, "auto"), 5); });
  EXPECT_TRUE(contains(said, "does not match the model"));
  EXPECT_TRUE(contains(said, "weight"));
  EXPECT_TRUE(contains(said, "project.dir"));
  EXPECT_EQ(count(said, "strict"), 0);
}

TEST(Mistakes, ResumingWithAnotherDataSet) {
  const TempFolder folder;
  const auto prepare = [&](const std::string& resume, int64_t samples) {
    Accelerator accelerator(in_project(folder, resume));
    const auto loader = accelerator.prepare(counting_loader(samples));
    for ([[maybe_unused]] auto&& batch : loader) break;
    accelerator.save_state();
  };
  prepare("no", 8);
  const std::string said = said_by([&] { prepare("auto", 9); });
  EXPECT_TRUE(contains(said, "data set"));
  EXPECT_TRUE(contains(said, "8"));
  EXPECT_TRUE(contains(said, "project.resume"));
}

TEST(Mistakes, SavingBetweenBackwardAndStep) {
  const TempFolder folder;
  Training t(in_project(folder));
  const std::string said = said_by([&] {
    auto window = t.accelerator.accumulate(t.model);
    t.accelerator.backward(t.model(torch::ones({1, 2})).sum());
    t.accelerator.save_state();
  });
  EXPECT_TRUE(contains(said, "between backward() and step()"));
}

TEST(Mistakes, ADamagedCheckpointIsPassedOver) {
  const TempFolder folder;
  {
    Training t(in_project(folder));
    t.step();
    t.accelerator.save_state();
    t.step();
    t.accelerator.save_state();
  }
  run_in_shell("truncate -s 10 '" + folder.path("checkpoints/checkpoint_1/model.safetensors") +
               "'");
  std::optional<accelerant::LoadedState> resumed;
  const std::string said = said_by([&] {
    Training t(in_project(folder, "auto"));
    resumed = t.accelerator.resumed();
  });
  EXPECT_TRUE(contains(said, "checkpoint_1"));
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->updates, 1);
}

TEST(Mistakes, ResumingAFinishedTraining) {
  const TempFolder folder;
  const auto train = [&](int64_t epochs) {
    OneWeight t(in_project(folder, "auto"));
    int trained = 0;
    for ([[maybe_unused]] const auto epoch : t.accelerator.epochs(epochs)) {
      t.backward(1);
      t.optimizer.step();
      t.optimizer.zero_grad();
      t.accelerator.save_state();
      ++trained;
    }
    return trained;
  };
  EXPECT_EQ(said_by([&] { EXPECT_EQ(train(2), 2); }), "");
  const std::string said = said_by([&] { EXPECT_EQ(train(2), 0); });
  EXPECT_TRUE(contains(said, "checkpoint_1"));
  EXPECT_TRUE(contains(said, "after the last of 2 epochs"));
  EXPECT_EQ(said_by([&] { EXPECT_EQ(train(3), 1); }), "");
}

// The checkpoint was saved after the first of two loops over epochs.
TEST(Mistakes, ResumingBetweenTwoLoopsOverEpochsIsToldNothing) {
  const TempFolder folder;
  const auto train = [&](bool stops) {
    OneWeight t(in_project(folder, "auto"));
    const auto run_epoch = [&] {
      t.backward(1);
      t.optimizer.step();
      t.optimizer.zero_grad();
    };
    for ([[maybe_unused]] const auto epoch : t.accelerator.epochs(2)) {
      run_epoch();
      t.accelerator.save_state();
    }
    if (stops) return;
    for ([[maybe_unused]] const auto epoch : t.accelerator.epochs(2)) run_epoch();
  };
  EXPECT_EQ(said_by([&] { train(true); }), "");
  EXPECT_EQ(said_by([&] { train(false); }), "");
}

TEST(Mistakes, ResumeIsForgotten) {
  const TempFolder folder;
  const auto train = [&](std::optional<std::string> resume) {
    auto options = in_project(folder);
    options.project.resume = std::move(resume);
    OneWeight t(options);
    t.backward(1);
    t.optimizer.step();
    t.accelerator.save_state();
  };
  EXPECT_EQ(said_by([&] { train(std::nullopt); }), "");
  const std::string said = said_by([&] { train(std::nullopt); });
  EXPECT_TRUE(contains(said, "checkpoint_0"));
  EXPECT_TRUE(contains(said, ".resume = \"auto\""));
  EXPECT_EQ(said_by([&] { train("auto"); }), "");
  EXPECT_EQ(said_by([&] { train("no"); }), "");
}

TEST(Mistakes, LoadingByHandInAProjectIsToldNothing) {
  const TempFolder folder;
  const auto train = [&](bool loads) {
    auto options = in_project(folder);
    options.project.resume = std::nullopt;
    OneWeight t(options);
    if (loads) t.accelerator.load_state();
    t.backward(1);
    t.optimizer.step();
    t.accelerator.save_state();
  };
  EXPECT_EQ(said_by([&] { train(false); }), "");
  EXPECT_EQ(said_by([&] { train(true); }), "");
}

TEST(Mistakes, EvaluatingInAProjectIsToldNothing) {
  const TempFolder folder;
  {
    OneWeight t(in_project(folder));
    t.accelerator.save_state();
  }
  auto options = in_project(folder);
  options.project.resume = std::nullopt;
  EXPECT_EQ(said_by([&] { OneWeight t(options); }), "");
}

// Updates from before do not count as updates without a step of the schedule.
TEST(Mistakes, ResumingWithALongScheduleIsToldNothing) {
  const TempFolder folder;
  const auto train = [&](int updates) {
    Cosine t(in_project(folder, "auto"), 2000);
    for (int i = 0; i < updates; ++i) t.step();
    t.accelerator.save_state();
  };
  EXPECT_EQ(said_by([&] { train(120); }), "");
  EXPECT_EQ(said_by([&] { train(4); }), "");
}

TEST(Mistakes, ResumingFromWhatIsNotACheckpoint) {
  const TempFolder folder;
  const auto resume_from = [&](const std::string& resume) {
    return said_by([&] { OneWeight t(in_project(folder, resume)); });
  };
  EXPECT_TRUE(contains(resume_from(""), "leave it out"));
  EXPECT_TRUE(contains(resume_from("yes"), "\"auto\", \"restart\", \"no\""));
  {
    OneWeight t(in_project(folder));
    t.accelerator.save_state();
  }
  const std::string said = resume_from(folder.path());
  EXPECT_TRUE(contains(said, "which is a project"));
  EXPECT_TRUE(contains(said, "\"auto\""));
}

TEST(Mistakes, SavingWithoutAProject) {
  OneWeight t(on_cpu());
  const std::string said = said_by([&] { t.accelerator.save_state(); });
  EXPECT_TRUE(contains(said, "project"));
}

}  // namespace
}  // namespace mistakes
