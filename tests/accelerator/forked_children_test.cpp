// Children that a training process forks: however they end, they end, and the training goes on as if
// they had never been.
//
// The children are forked while everything is busy. A child that waited for one of the threads it
// does not have, or for a lock that one of them holds, would hang; the threads exist in every run, so
// that does not depend on luck.

#include <accelerant/accelerant.h>
#include <accelerant/accelerator/profile.h>
#include <accelerant/core/failpoint.h>
#include <accelerant/dist/local_sgd.h>
#include <accelerant/launch/debug_launcher.h>
#include <accelerant/track/progress_bar.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/files.h"
#include "store/verify.h"
#include "support/forked.h"
#include "support/on_device.h"
#include "support/parameter_hash.h"
#include "support/ranks.h"
#include "support/sanitized.h"
#include "support/temp_folder.h"

namespace {

using accelerant::Accelerator;
using accelerant::AcceleratorOptions;
using accelerant::Error;
using std::chrono::milliseconds;

using AtEachStep = std::function<void()>;
constexpr int kSteps = 6;

AcceleratorOptions options_in(const std::string& folder) {
  return {.cpu = true,
          .mixed_precision = accelerant::Precision::fp16,
          .gradient_accumulation = {.steps = 2},
          .project = {.dir = folder, .resume = "auto", .save_on_preemption = true},
          .process_group = {.monitor = {.interval = milliseconds(5)}},
          .warnings = {.slow_precision = false}};
}

// A training with everything that has threads. Returns the hash of the model.
uint64_t train(const AcceleratorOptions& options, const std::string& folder,
               const AtEachStep& at_each_step) {
  torch::manual_seed(1);
  torch::nn::Linear net(4, 3);
  torch::optim::AdamW adam(net->parameters());
  auto rows =
      accelerant::data::loader(accelerant::data::tensors(torch::randn({64, 4})),
                               {.batch_size = 2, .shuffle = true, .workers = 2, .prefetch = 4});
  Accelerator accelerator(options);
  auto [model, optimizer, loader] = accelerator.prepare(net, adam, rows);
  auto profile = accelerator.profile({.output_trace_dir = folder, .summary = nullptr});
  std::FILE* const display = std::fopen((folder + "/display").c_str(), "w");
  {
    accelerant::ProgressBar bar({.stream = display, .plain_interval = 0});
    int step = 0;
    for (auto&& [batch] : loader) {
      const auto window = accelerator.accumulate(model);
      accelerator.backward(model(batch).square().mean());
      optimizer.step();
      optimizer.zero_grad();
      bar.advance();
      accelerator.save_state({.async = true});
      at_each_step();  // while the checkpoint is written
      if (++step == kSteps) break;
    }
  }
  std::fclose(display);
  profile.finish();
  uint64_t hash = 0;
  for (const torch::Tensor& parameter : net->parameters()) hash = 31 * hash + hash_of(parameter);
  return hash;
}

void expect_good_checkpoints(const std::string& folder) {
  const auto names = accelerant::entries_of(folder + "/checkpoints");
  ASSERT_EQ(names.size(), static_cast<size_t>(kSteps));
  for (const std::string& name : names) {
    const std::string path = folder + "/checkpoints/" + name;
    const auto found =
        accelerant::checkpoint::verify(path, accelerant::checkpoint::Check::checksums);
    EXPECT_TRUE(found.problems.empty()) << path;
  }
}

// A bar draws a line at its end: once, and not in every child.
int64_t lines_displayed(const std::string& folder) {
  const std::string text = TempFolder::content_of(folder + "/display");
  return std::count(text.begin(), text.end(), '\n');
}

void train_with_children(const std::function<AcceleratorOptions(const std::string&)>& options_of) {
  const TempFolder plain;
  const TempFolder folder;
  const uint64_t expected = train(options_of(plain.path()), plain.path(), [] {});
  forked::as_main([&] {
    const uint64_t hash =
        train(options_of(folder.path()), folder.path(), forked::expect_children_to_end);
    EXPECT_EQ(hash, expected);
    expect_good_checkpoints(folder.path());
    EXPECT_EQ(lines_displayed(folder.path()), lines_displayed(plain.path()));
    EXPECT_NE(TempFolder::content_of(folder.path("profile_0.json")), "");
  });
}

// A thread of the parent that allocates while it forks leaves the malloc of a sanitizer locked in the
// child, which hangs, now and then, when libtorch frees something at its end.
constexpr const char* kLockedMalloc = "the malloc of sanitizers may be locked in forked children";

class ForkedChildren : public testing::Test {
 protected:
  void SetUp() override {
    if (is_sanitized) GTEST_SKIP() << kLockedMalloc;
    setenv("ACCELERANT_FAILPOINT", "checkpoint.write:sleep=20", 1);
    accelerant::reload_failpoints();
  }
  void TearDown() override {
    unsetenv("ACCELERANT_FAILPOINT");
    accelerant::reload_failpoints();
  }
};

TEST_F(ForkedChildren, OfOneProcess) { train_with_children(options_in); }

TEST_F(ForkedChildren, OfOneProcessWithGroups) {
  train_with_children([](const std::string& folder) {
    auto options = options_in(folder);
    options.process_group.with_one_process = true;
    return options;
  });
}

// The children of both ranks are forked between exchanges, and while a message may be under way.
void train_on_ranks(bool dispatches) {
  const std::string folder = std::getenv("FORKED_CHILDREN_FOLDER");
  uint64_t hashes[2] = {};
  int64_t lines[2] = {};
  forked::as_main([&] {
    for (const bool forks : {false, true}) {
      const std::string shared = folder + (forks ? "/forking" : "/plain");
      auto options = options_in(shared);
      options.data_loader.dispatch_batches = dispatches;
      const std::string own = shared + "/rank_" + std::to_string(rank());
      accelerant::make_folders(own);
      hashes[forks ? 1 : 0] = train(
          options, own, forks ? AtEachStep(forked::expect_children_to_end) : [] {});
      lines[forks ? 1 : 0] = lines_displayed(own);
    }
  });
  EXPECT_EQ(hashes[1], hashes[0]);
  EXPECT_EQ(lines[1], lines[0]);
}

void run_on_ranks() {
  const TempFolder folder;
  rank_test::run_and_expect_success(
      {.num_ranks = 2,
       .timeout = 120,
       .environment = {{"FORKED_CHILDREN_FOLDER", folder.path()},
                       {"ACCELERANT_FAILPOINT", "checkpoint.write:sleep=20"}}});
  expect_good_checkpoints(folder.path("forking"));
}

TEST(ForkedChildrenOfRanks, EachRankReadsItsOwnData) {
  if (is_sanitized) GTEST_SKIP() << kLockedMalloc;
  rank_test::is_rank() ? train_on_ranks(false) : run_on_ranks();
}

TEST(ForkedChildrenOfRanks, OneRankReadsForAll) {
  if (is_sanitized) GTEST_SKIP() << kLockedMalloc;
  rank_test::is_rank() ? train_on_ranks(true) : run_on_ranks();
}

// The last average is an exchange, and the end of the scope makes it.
TEST(ForkedChildrenOfRanks, InLocalSgd) {
  if (!rank_test::is_rank()) return rank_test::run_and_expect_success({.num_ranks = 2});
  forked::as_main([] {
    const auto world = accelerant::dist::World::join(accelerant::dist::Environment::detect());
    const torch::Tensor own = torch::full({2}, static_cast<float>(rank()));
    {
      accelerant::dist::LocalSgd local_sgd(world, {own}, {.steps = 4});
      forked::expect_children_to_end();
      local_sgd.step();
    }
    EXPECT_EQ(own[0].item<float>(), 0.5F);
  });
}

// A World that lives until exit, and models that outlive it.
TEST(ForkedChildrenOfRanks, OfAProgramWithStaticObjects) {
  if (!rank_test::is_rank()) return rank_test::run_and_expect_success({.num_ranks = 2});
  static Accelerator* const accelerator = new Accelerator({.cpu = true});
  static auto model = accelerator->prepare(torch::nn::Linear(2, 2));
  static const std::shared_ptr<Accelerator> owner(accelerator);
  forked::as_main([] {
    for (int round = 0; round < 10; ++round) {
      forked::expect_children_to_end();
      accelerator->backward(model(torch::ones({1, 2})).sum());
    }
  });
}

// What a child must not do says so, instead of waiting for ever.
TEST(ForkedChildrenOfRanks, CannotExchange) {
  if (!rank_test::is_rank()) return rank_test::run_and_expect_success({.num_ranks = 2});
  forked::as_main([] {
    Accelerator accelerator({.cpu = true});
    const pid_t child = fork();
    if (child == 0) {
      try {
        accelerator.wait_for_everyone();
      } catch (const Error& error) {
        const std::string text = error.what();
        throw forked::ReturnFromMain{text.starts_with("A forked child cannot exchange") ? 3 : 4};
      }
      throw forked::ReturnFromMain{5};
    }
    EXPECT_EQ(forked::end_of(child), "exit 3");
    accelerator.wait_for_everyone();
  });
}

// A child is not the rank: the launcher gets neither its error nor its exit code.
TEST(ForkedChildrenOfRanks, DoNotReportInTheNameOfTheirRank) {
  if (rank_test::is_rank()) {
    Accelerator accelerator({.cpu = true});
    for (int round = 0; round < 10; ++round) {
      const pid_t child = fork();
      if (child == 0) forked::throw_uncaught("of a child");
      EXPECT_EQ(forked::end_of(child), "signal 6");
    }
    accelerator.wait_for_everyone();
    _exit(7);
  }
  const auto result = rank_test::run({.num_ranks = 2});
  for (const auto& ended : result.ranks) {
    EXPECT_FALSE(ended.error) << ended.error->message;
    EXPECT_EQ(ended.err.find("terminated"), std::string::npos) << ended.err;
  }
}

// --- Children of a process that sees a device ----------------------------------------------------

// A device that exists only so that autograd starts a thread for it, as it does for each GPU.
class SeenDevice final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device getDevice() const override { return {type(), 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

int threads_of_autograd() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (forked::content_of_proc(task.path() / "comm").starts_with("pt_autograd")) ++count;
  }
  return count;
}

void train_beside_a_device(Accelerator& accelerator) {
  static const SeenDevice device;
  auto model = accelerator.prepare(torch::nn::Linear(2, 2));
  auto& seen = c10::impl::device_guard_impl_registry[static_cast<size_t>(device.type())];
  seen.store(&device);
  accelerator.backward(model(torch::ones({1, 2})).sum());
  seen.store(nullptr);
}

// Ranks, because autograd starts its threads once in a process.
RANK_TEST(ForkedChildrenBesideDevices, DoNotWaitForTheThreadsOfAutograd, 1) {
  forked::as_main([] {
    Accelerator accelerator({.cpu = true});
    train_beside_a_device(accelerator);
    ASSERT_GE(threads_of_autograd(), 1);
    forked::expect_children_to_end();
  });
}

RANK_TEST(ForkedChildrenBesideDevices, WaitForTheirOwn, 1) {
  const Accelerator first({.cpu = true});
  const pid_t child = fork();
  if (child == 0) {
    Accelerator accelerator({.cpu = true});
    train_beside_a_device(accelerator);
    std::exit(threads_of_autograd() >= 1 ? 7 : 1);
  }
  EXPECT_EQ(forked::end_of(child), "exit 7");
}

class ForkedChildrenThatExitAtOnce : public OnDevice {};

TEST_P(ForkedChildrenThatExitAtOnce, DoNotDisturbATraining) {
  const TempFolder plain;
  const TempFolder folder;
  auto options = options_in(plain.path());
  options.cpu = !on_cuda();
  const uint64_t expected = train(options, plain.path(), [] {});
  options.project.dir = folder.path();
  const uint64_t hash = train(options, folder.path(), [] {
    const pid_t child = fork();
    if (child == 0) _exit(7);
    EXPECT_EQ(forked::end_of(child), "exit 7");
  });
  EXPECT_EQ(hash, expected);
  expect_good_checkpoints(folder.path());
}

ON_EVERY_DEVICE(ForkedChildrenThatExitAtOnce);

// --- Children of a process that has started others -----------------------------------------------

TEST(ForkedChildrenOfLaunchers, LeaveTheRanksAndTheirFilesAlone) {
  if (is_sanitized) GTEST_SKIP() << kLockedMalloc;
  forked::as_main([] {
    int children = 0;
    const auto result =
        accelerant::launch::run_ranks({.command = {"/bin/sh", "-c",
                                                   "for i in 1 2 3; do echo $i; sleep 0.05; done; "
                                                   "test -d $(dirname $TORCHELASTIC_ERROR_FILE)"},
                                       .num_processes = 2,
                                       .on_output = [&](auto, auto, auto) {
                                         ++children;
                                         const pid_t child = fork();
                                         if (child == 0) throw forked::ReturnFromMain{7};
                                         EXPECT_EQ(forked::end_of(child), "exit 7");
                                       }});
    EXPECT_TRUE(result.succeeded()) << result.report;
    EXPECT_GT(children, 0);
  });
}

// debug_launcher exits with the code of the function, and in a child with that of the child.
TEST(ForkedChildrenOfLaunchers, OfTheFunctionOfDebugLauncher) {
  if (is_sanitized) GTEST_SKIP() << kLockedMalloc;
  const auto ranks = accelerant::debug_launcher(
      [] {
        Accelerator accelerator({.cpu = true});
        for (const int code : {0, 5}) {
          const pid_t child = fork();
          if (child == 0) return code;
          EXPECT_EQ(forked::end_of(child), "exit " + std::to_string(code));
        }
        const pid_t child = fork();
        if (child == 0) throw std::runtime_error("of a child");
        EXPECT_EQ(forked::end_of(child), "signal 6");
        accelerator.wait_for_everyone();
        return testing::Test::HasFailure() ? 1 : 0;
      },
      {.arguments = std::vector<std::string>{
           "--gtest_filter=ForkedChildrenOfLaunchers.OfTheFunctionOfDebugLauncher"}});
  for (const auto& ended : ranks) EXPECT_FALSE(ended.error);
}

}  // namespace
