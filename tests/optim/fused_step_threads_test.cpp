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
    parameters.push_back(torch::randn({300'000}).requires_grad_());  // work for many
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
