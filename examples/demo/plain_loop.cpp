// The demo's training loop with plain libtorch. accelerant_loop.cpp is the same with Accelerant.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "data.h"
#include "loops.h"
#include "network.h"

namespace demo {
namespace {

// The learning rate of an update: a warm-up, then half a cosine.
double rate_at(int64_t update, int64_t updates) {
  const auto warmup = static_cast<double>(updates_of_warmup);
  const auto done = static_cast<double>(update);
  if (update < updates_of_warmup) return largest_rate * done / warmup;
  const double progress = (done - warmup) / std::max(1.0, static_cast<double>(updates) - warmup);
  return largest_rate * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

}  // namespace

double train_plain(const Options& options, const examples::FashionMnist& data, Recorder& recorder) {
  const auto& [train, test] = data;
  const int64_t updates = count_updates(options, train.labels.size(0));
  const torch::Device device = device_of(options);
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  Network net(options.width);
  net->to(device);
  torch::optim::AdamW optimizer(net->parameters(), largest_rate);

  int64_t update = 0;
  recorder.start(update);
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    for (const auto& rows : shuffled_batches(options, train.labels.size(0), epoch)) {
      const auto images = train.images.index_select(0, rows).to(device);
      const auto labels = train.labels.index_select(0, rows).to(device);
      for (auto& group : optimizer.param_groups()) {
        group.options().set_lr(rate_at(update, updates));
      }
      const auto loss = torch::cross_entropy_loss(net->forward(images), labels);
      loss.backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), largest_norm);
      optimizer.step();
      optimizer.zero_grad();
      recorder.add(loss);
      ++update;
    }
  }
  recorder.stop();

  net->eval();
  const torch::NoGradGuard no_grad;
  int64_t right = 0;
  for (int64_t row = 0; row < test.labels.size(0); row += test_batch) {
    const auto images = test.images.slice(0, row, row + test_batch).to(device);
    const auto labels = test.labels.slice(0, row, row + test_batch).to(device);
    const auto hits = net->forward(images).argmax(1).eq(labels);
    right += hits.sum().item<int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(test.labels.size(0));
}

}  // namespace demo
