#include "speed.h"

#include <accelerant/track/progress_bar.h>
#include <accelerant/watch/environment.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "interrupt.h"
#include "trainer.h"

namespace demo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int steps_per_round = 10;
constexpr int most_rounds = 20;
constexpr int least_rounds = 3;
constexpr double enough_seconds = 10;  // what the rounds should take together

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int64_t processes() { return accelerant::dist::Environment::detect().num_processes; }

// This process's part of a batch.
torch::Tensor share_of(const torch::Tensor& rows, const Options& options) {
  return rows.slice(0, 0, std::max<int64_t>(options.batch_size / processes(), 1));
}

// One network with the batch it trains on, and the time of each round.
class Contestant {
 public:
  Contestant(Precision precision, const Options& options, const examples::LabelledImages& train,
             torch::Device device)
      : trainer_(seeded(precision, options, device)),
        images_(share_of(train.images, options)),
        labels_(share_of(train.labels, options)),
        device_(device) {}

  void warm_up() { run(); }

  void run_round() {
    const auto start = Clock::now();
    run();
    seconds_.push_back(seconds_since(start));
  }

  double samples_per_second() const {
    return static_cast<double>(images_.size(0) * processes()) * steps_per_round / median(seconds_);
  }

 private:
  static Trainer seeded(Precision precision, const Options& options, torch::Device device) {
    torch::manual_seed(static_cast<uint64_t>(options.seed));
    return {precision, device, options.width, 1e-3};
  }

  void run() {
    for (int i = 0; i < steps_per_round; ++i) {
      throw_if_interrupted();
      trainer_.step(images_, labels_);
    }
    if (device_.is_cuda()) torch::cuda::synchronize();
  }

  Trainer trainer_;
  torch::Tensor images_;
  torch::Tensor labels_;
  torch::Device device_;
  std::vector<double> seconds_;
};

}  // namespace

SpeedComparison compare_with_fp32(const Options& options, const examples::FashionMnist& data,
                                  torch::Device device) {
  Contestant chosen(options.precision, options, data.train, device);
  Contestant fp32(Precision::fp32, options, data.train, device);
  const auto start = Clock::now();
  chosen.warm_up();
  fp32.warm_up();
  const int rounds = std::clamp(static_cast<int>(enough_seconds / seconds_since(start)),
                                least_rounds, most_rounds);

  accelerant::ProgressBar bar(
      {.total = rounds,
       .description = std::string(name_of(options.precision)) + " vs fp32",
       .unit = "round",
       .enabled = accelerant::dist::Environment::detect().is_local_main_process()});
  for (int round = 0; round < rounds; ++round) {
    // Who goes first changes, so that neither always has the cooler or the busier machine.
    Contestant& first = round % 2 == 0 ? chosen : fp32;
    Contestant& second = round % 2 == 0 ? fp32 : chosen;
    first.run_round();
    second.run_round();
    bar.advance();
  }
  return {.samples_per_second = chosen.samples_per_second(),
          .fp32_samples_per_second = fp32.samples_per_second()};
}

}  // namespace demo
