// The demo's training loop with Accelerant. plain_loop.cpp is the same without it. This one also
// trains in 16 bits and in several processes, and goes on where it was when it is started again.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <algorithm>

#include "data.h"
#include "loops.h"
#include "network.h"

namespace demo {

double train_with_accelerant(const Options& options, const examples::FashionMnist& data,
                             Recorder& recorder) {
  const auto& [train, test] = data;
  const int64_t updates = count_updates(options, train.labels.size(0));
  const int64_t save_every = std::max<int64_t>(1, updates / 5);
  accelerant::set_seed(static_cast<uint64_t>(options.seed));
  accelerant::Accelerator accelerator(
      {.device = device_of(options),
       .mixed_precision = options.precision,
       .data_loader = {.split_batches = true},  // the batch is that of all processes together
       .project = {.dir = options.project, .total_limit = 2}});
  Network net(options.width);
  torch::optim::AdamW adamw(net->parameters(), largest_rate);
  auto cosine = accelerant::optim::cosine_with_warmup(
      adamw, {.warmup_steps = updates_of_warmup, .total_steps = updates});
  auto [model, optimizer, scheduler, batches, test_batches] = accelerator.prepare(
      net, adamw, cosine,
      accelerant::data::loader(accelerant::data::tensors(train.images, train.labels),
                               {.batch_size = options.batch_size, .shuffle = true}),
      accelerant::data::loader(accelerant::data::tensors(test.images, test.labels),
                               {.batch_size = test_batch}));

  // On a GPU the whole step becomes one CUDA graph. On a CPU it runs as it is written.
  auto step = accelerator.capture([&](const torch::Tensor& images, const torch::Tensor& labels) {
    const auto loss = torch::cross_entropy_loss(model(images), labels);
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, largest_norm);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    return loss;
  });

  const auto resumed = accelerator.resumed();
  int64_t update = resumed ? resumed->updates : 0;
  recorder.start(update);
  for ([[maybe_unused]] const int64_t epoch : accelerator.epochs(options.epochs)) {
    for (auto&& [images, labels] : batches) {
      recorder.add(step(images, labels));
      ++update;
      if (!options.project.empty() && update % save_every == 0) {
        accelerator.save_state({.async = true});
      }
    }
  }
  recorder.stop();

  model.eval();
  const torch::NoGradGuard no_grad;
  int64_t right = 0;
  for (auto&& [images, labels] : test_batches) {
    const auto hits = accelerator.gather_for_metrics(model(images).argmax(1).eq(labels));
    right += hits.sum().item<int64_t>();
  }
  if (!options.project.empty()) accelerator.save_model(model, options.project + "/model");
  return static_cast<double>(right) / static_cast<double>(test.labels.size(0));
}

}  // namespace demo
