// FusedStep on several threads of the CPU.
#include <ATen/Parallel.h>
#include <sys/resource.h>

#include "optim/fused_step_helpers.h"

namespace {

using accelerant::FusedStep;

double cpu_seconds_of(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class FusedStepThreads : public testing::Test {
 protected:
  ~FusedStepThreads() override { at::set_num_threads(threads_); }

 private:
  const int threads_ = at::get_num_threads();
};

TEST_F(FusedStepThreads, GiveTheSameBits) {
  const auto train = [](int threads) {
    at::set_num_threads(threads);
    torch::manual_seed(3);
    auto parameters = awkward_parameters(at::kFloat);
    parameters.push_back(torch::randn({300'000}).requires_grad_());  // work for many threads
    torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(0.01));
    FusedStep fused(optimizer);
    std::vector<at::Tensor> norms;
    for (int i = 0; i < 4; ++i) {
      set_random_gradients(parameters);
      norms.push_back(fused.clip_grad_norm_(0.5));
      fused.step();
    }
    parameters.insert(parameters.end(), norms.begin(), norms.end());
    return parameters;
  };
  const auto expected = train(1);
  for (const int threads : {2, 3, 7}) expect_same(train(threads), expected, "threads");
}

// Several threads look up which of thousands of parameters have changed, each for its own part.
TEST_F(FusedStepThreads, NoticeEveryChangeOfManyParameters) {
  at::set_num_threads(4);
  constexpr std::size_t count = 5000;
  std::vector<at::Tensor> ours;
  for (std::size_t i = 0; i < count; ++i) ours.push_back(torch::randn({3}).requires_grad_());
  const auto theirs = copies_of(ours);
  torch::optim::AdamW optimizer(ours, torch::optim::AdamWOptions(0.01));
  torch::optim::AdamW stock(theirs, torch::optim::AdamWOptions(0.01));
  FusedStep fused(optimizer);
  set_random_gradients(ours);
  const auto step = [&] {
    copy_gradients(ours, theirs);
    const at::Tensor norm = fused.clip_grad_norm_(10.0);
    EXPECT_NEAR(norm.item<double>(), torch::nn::utils::clip_grad_norm_(theirs, 10.0), 1e-3);
    fused.step();
    stock.step();
  };
  step();
  const at::NoGradGuard no_grad;
  for (const std::size_t changed : {std::size_t{0}, count / 2, count - 1}) {
    const auto version = ours[changed]._version();
    ours[changed].mutable_grad() = torch::full({3}, 5.0);  // another tensor
    step();
    ours[changed].grad().fill_(-7.0);  // other values in it
    step();
    ours[changed].mutable_grad().reset();  // none
    step();
    ours[changed].mutable_grad() = torch::full({3}, 2.0);
    step();
    EXPECT_EQ(ours[changed]._version(), version + 3);
  }
  expect_close(ours, theirs, 1e-5, "many");
}

TEST_F(FusedStepThreads, ShareTheWork) {
  at::set_num_threads(2);
  at::Tensor parameter = torch::ones({1 << 20}).requires_grad_();
  parameter.mutable_grad() = torch::ones({1 << 20});
  torch::optim::Adam optimizer({parameter}, 0.1);
  FusedStep fused(optimizer);
  fused.step();
  const double own = cpu_seconds_of(RUSAGE_THREAD);
  const double all = cpu_seconds_of(RUSAGE_SELF);
  for (int i = 0; i < 200; ++i) fused.step();
  const double of_this_thread = cpu_seconds_of(RUSAGE_THREAD) - own;
  EXPECT_GT(cpu_seconds_of(RUSAGE_SELF) - all, 1.1 * of_this_thread);
}

}  // namespace
