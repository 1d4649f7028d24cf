// Trains a small GPT on the characters of a text with plain libtorch: gradients accumulated over
// micro-batches, a loss that is the mean over all tokens of a step, clipping, and a learning rate
// that warms up and falls along a cosine. At the end it writes a short text of its own.
//
//   example-char-gpt-plain [STEPS [TEXT_FILE]]
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <string>

#include "common/arguments.h"
#include "common/char_gpt.h"
#include "common/documents.h"

namespace {

// The learning rate of a step, as a fraction of the largest.
double schedule(int64_t step, int64_t warmup, int64_t steps) {
  if (step < warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  const double progress = static_cast<double>(step - warmup) /
                          static_cast<double>(std::max<int64_t>(1, steps - warmup));
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t steps = examples::number_at(1, argc, argv, 400);
  const auto path = examples::text_at(2, argc, argv, EXAMPLES_DATA_FOLDER "/field_guide.txt");
  const int64_t micro_batches = 2;  // per step
  const int64_t batch_size = 16;    // documents in a micro-batch
  const double largest_rate = 3e-3;
  const int64_t warmup = std::min<int64_t>(20, steps / 5 + 1);

  const examples::Documents documents(path);
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  torch::manual_seed(1);
  const examples::GptOptions options{.vocabulary = documents.text().symbols()};
  examples::CharGpt net(options);
  net->to(device);
  torch::optim::AdamW optimizer(net->parameters(),
                                torch::optim::AdamWOptions(largest_rate).betas({0.9, 0.99}));

  int64_t parameters = 0;
  for (const auto& parameter : net->parameters()) parameters += parameter.numel();
  std::printf("%zu documents, %ld symbols, %ld parameters\n", documents.size(), options.vocabulary,
              parameters);

  for (int64_t step = 0; step < steps; ++step) {
    // Every token of the step weighs the same, whichever micro-batch it is in.
    const auto batches = documents.random_batches(micro_batches, batch_size, options.context);
    const auto tokens = static_cast<double>(examples::count_targets(batches));
    set_learning_rate(optimizer, largest_rate * schedule(step, warmup, steps));
    double step_loss = 0;
    for (const auto& batch : batches) {
      const auto logits = net(batch.tokens.to(device));
      const auto loss_sum = torch::nn::functional::cross_entropy(
          logits.flatten(0, 1), batch.targets.to(device).flatten(),
          torch::nn::functional::CrossEntropyFuncOptions()
              .reduction(torch::kSum)
              .ignore_index(examples::no_target));
      (loss_sum / tokens).backward();
      step_loss += loss_sum.item<double>() / tokens;
    }
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
    if ((step + 1) % 20 == 0) std::printf("step %ld loss %g\n", step + 1, step_loss);
  }

  net->eval();
  const auto sample =
      examples::generate(net, documents.text(), documents.beginning(2), 300, device);
  std::printf("\n%s\n", sample.c_str());
}
