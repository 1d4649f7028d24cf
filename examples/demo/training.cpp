#include "training.h"

#include <accelerant/track/progress_bar.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <string>

#include "interrupt.h"
#include "trainer.h"

namespace demo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double peak_learning_rate = 6e-3;
constexpr double warm_up_share = 0.1;  // of all steps
constexpr int64_t test_batch = 1000;

// Rises in a line, then falls along a cosine to zero.
double learning_rate_at(int64_t step, int64_t steps) {
  const double share = (static_cast<double>(step) + 0.5) / static_cast<double>(steps);
  if (share < warm_up_share) return peak_learning_rate * share / warm_up_share;
  const double fall = (share - warm_up_share) / (1 - warm_up_share);
  return peak_learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * fall));
}

std::string two_decimals(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f%%", 100 * share);
  return text;
}

// Loss and accuracy over an epoch so far. The sums stay on the device: asking for them waits.
struct RunningSums {
  torch::Tensor loss;
  torch::Tensor correct;
  int64_t samples = 0;

  void add(const StepOutput& output, int64_t batch) {
    const torch::Tensor batch_loss = output.loss * batch;
    loss = loss.defined() ? loss + batch_loss : batch_loss;
    correct = correct.defined() ? correct + output.correct : output.correct;
    samples += batch;
  }

  void show(accelerant::ProgressBar& bar) const {
    if (samples == 0) return;
    const auto count = static_cast<double>(samples);
    bar.set("loss", two_decimals(loss.item<double>() / count));
    bar.set("acc", percent(correct.item<double>() / count));
  }
};

double test_accuracy(Trainer& trainer, const accelerant::data::LabelledImages& test) {
  const int64_t count = test.labels.size(0);
  int64_t correct = 0;
  for (int64_t start = 0; start < count; start += test_batch) {
    throw_if_interrupted();
    const int64_t end = std::min(start + test_batch, count);
    correct +=
        trainer.count_correct(test.images.slice(0, start, end), test.labels.slice(0, start, end))
            .item<int64_t>();
  }
  return static_cast<double>(correct) / static_cast<double>(count);
}

}  // namespace

TrainingResult train(const Options& options, const accelerant::data::Mnist& data,
                     torch::Device device) {
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  Trainer trainer(options.precision, device, options.width);
  const int64_t samples = data.train.labels.size(0);
  const int64_t steps_per_epoch = (samples + options.batch_size - 1) / options.batch_size;
  const int64_t steps = options.epochs * steps_per_epoch;
  const bool scales = trainer.scaler().is_enabled();

  TrainingResult result;
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const auto epoch_start = Clock::now();
    // The order is made on the CPU, so that it is the same on every device.
    const torch::Tensor order = torch::randperm(samples).to(device);
    RunningSums sums;
    accelerant::ProgressBar bar(
        {.total = samples,
         .description = std::to_string(epoch + 1) + "/" + std::to_string(options.epochs),
         .unit = ""});
    const auto show = [&] {
      sums.show(bar);
      if (scales) bar.set("scale", trainer.scaler().status().scale);
    };
    for (int64_t start = 0; start < samples; start += options.batch_size) {
      throw_if_interrupted();
      const torch::Tensor batch =
          order.slice(0, start, std::min(start + options.batch_size, samples));
      sums.add(trainer.step(data.train.images.index_select(0, batch),
                            data.train.labels.index_select(0, batch),
                            learning_rate_at(result.steps, steps)),
               batch.size(0));
      ++result.steps;
      if (bar.due()) show();
      bar.advance(batch.size(0));
    }
    show();  // waits for the device, so the time is that of the whole epoch
    bar.finish();
    result.seconds += std::chrono::duration<double>(Clock::now() - epoch_start).count();
    result.samples += samples;
  }

  result.final_scale = trainer.scaler().get_scale();  // waits, so that the status is the last
  result.skipped_steps = trainer.scaler().status().skips;
  result.test_accuracy = test_accuracy(trainer, data.test);
  return result;
}

}  // namespace demo
