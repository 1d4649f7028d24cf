#include "training.h"

#include <accelerant/accelerant.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "interrupt.h"
#include "trainer.h"

namespace demo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double peak_learning_rate = 6e-3;
constexpr double warm_up_share = 0.1;  // of all steps
constexpr int64_t test_batch = 1000;

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

template <class Loader>
double test_accuracy(Trainer& trainer, const Loader& test) {
  int64_t correct = 0;
  for (auto&& [images, labels] : test) {
    throw_if_interrupted();
    // Of all processes, each picture once.
    const auto right = trainer.accelerator().gather_for_metrics(trainer.is_correct(images, labels));
    correct += right.sum().template item<int64_t>();
  }
  return static_cast<double>(correct) / static_cast<double>(test.dataset_length().value());
}

}  // namespace

TrainingResult train(const Options& options, const examples::FashionMnist& data,
                     torch::Device device) {
  accelerant::set_seed(static_cast<uint64_t>(options.seed));
  Trainer trainer(options.precision, device, options.width, peak_learning_rate);
  accelerant::Accelerator& accelerator = trainer.accelerator();
  const int64_t samples = data.train.labels.size(0);
  const bool scales = accelerator.scaler().is_enabled();

  const auto train_batches =
      accelerant::data::loader(accelerant::data::tensors(data.train.images, data.train.labels),
                               {.batch_size = options.batch_size, .shuffle = true});
  const auto test_batches = accelerant::data::loader(
      accelerant::data::tensors(data.test.images, data.test.labels), {.batch_size = test_batch});
  const int64_t steps = options.epochs * accelerator.updates_per_epoch(train_batches);
  const auto warm_up_steps = static_cast<int64_t>(warm_up_share * static_cast<double>(steps));
  auto cosine = accelerant::optim::cosine_with_warmup(
      trainer.adamw(), {.warmup_steps = warm_up_steps, .total_steps = steps});
  auto [train_loader, test_loader, scheduler] =
      accelerator.prepare(train_batches, test_batches, cosine);

  TrainingResult result;
  for (const int64_t epoch : accelerator.epochs(options.epochs)) {
    const auto epoch_start = Clock::now();
    RunningSums sums;
    accelerant::ProgressBar bar(
        {.total = samples,
         .description = std::to_string(epoch + 1) + "/" + std::to_string(options.epochs),
         .unit = "",
         .enabled = accelerator.is_local_main_process()});
    const auto show = [&] {
      sums.show(bar);
      if (scales) bar.set("scale", accelerator.scaler().status().scale);
    };
    for (auto&& [images, labels] : train_loader) {
      throw_if_interrupted();
      sums.add(trainer.step(images, labels), labels.size(0));
      scheduler.step();
      ++result.steps;
      if (bar.due()) show();
      bar.advance(train_loader.current_samples());
    }
    show();  // waits for the device, so the time is that of the whole epoch
    bar.finish();
    result.seconds += std::chrono::duration<double>(Clock::now() - epoch_start).count();
    result.samples += samples;
  }

  result.final_scale = accelerator.scaler().get_scale();  // waits, so that the status is the last
  result.skipped_steps = accelerator.scaler().status().skips;
  result.test_accuracy = test_accuracy(trainer, test_loader);
  return result;
}

}  // namespace demo
