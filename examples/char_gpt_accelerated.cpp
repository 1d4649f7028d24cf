// Trains a small GPT on the characters of a text with Accelerant: gradients accumulated over
// micro-batches, a loss that is the mean over all tokens of a step, clipping, and a learning rate
// that warms up and falls along a cosine. At the end it writes a little itself. char_gpt_plain.cpp
// is the same without Accelerant; the difference is the lesson.
//
//   ACCELERATE_MIXED_PRECISION=bf16 example-char-gpt-accelerated [--project DIR] [STEPS [TEXT_FILE]]
//
// DIR: save the state of the training there, and go on from it when started again.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>

#include "common/char_gpt.h"
#include "common/documents.h"
#include "common/take_option.h"

int main(int argc, char** argv) try {
  const std::string project = examples::take_option(argc, argv, "--project");
  const int64_t steps = argc > 1 ? std::stoll(argv[1]) : 400;
  const std::string path = argc > 2 ? argv[2] : EXAMPLES_DATA_FOLDER "/field_guide.txt";
  const int64_t micro_batches = 2;  // per step
  const int64_t batch_size = 16;    // documents in a micro-batch
  const double largest_rate = 3e-3;
  const int64_t warmup = std::min<int64_t>(20, steps / 5 + 1);

  const examples::Documents documents(path);
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  accelerant::Accelerator accelerator(
      {.device = device,
       .gradient_accumulation = {micro_batches},
       .project = {.dir = project,
                   .total_limit = 2,
                   .resume = project.empty() ? "no" : "auto",
                   .save_on_preemption = false}});  // SIGTERM ends it
  // With several processes each draws documents of its own.
  torch::manual_seed(1 + static_cast<uint64_t>(accelerator.process_index()));
  const examples::GptOptions options{.vocabulary = documents.text().symbols()};
  examples::CharGpt net(options);
  torch::optim::AdamW adamw(net->parameters(),
                            torch::optim::AdamWOptions(largest_rate).betas({0.9, 0.99}));
  auto cosine = accelerant::optim::cosine_with_warmup(adamw, {warmup, steps});
  auto [model, optimizer, scheduler] = accelerator.prepare(net, adamw, cosine);

  int64_t parameters = 0;
  for (const auto& parameter : net->parameters()) parameters += parameter.numel();
  std::printf("%zu documents, %ld symbols, %ld parameters\n", documents.size(), options.vocabulary,
              parameters);

  // No loop over a prepared loader tells how far the training is. So epochs() counts the steps, and
  // the state is saved where one begins, before it draws its documents.
  const auto steps_left = accelerator.epochs(steps);  // all of them, unless it resumes
  if (*steps_left.begin() > 0) std::printf("resuming after step %ld\n", *steps_left.begin());
  for (const int64_t step : steps_left) {
    if (!project.empty() && step > 0 && step % 20 == 0) accelerator.save_state({.async = true});
    // Every token of the step weighs the same, whichever micro-batch it is in.
    const auto batches = documents.random_batches(micro_batches, batch_size, options.context);
    const auto tokens = static_cast<double>(examples::count_targets(batches));
    double step_loss = 0;
    for (const auto& batch : batches) {
      const auto window = accelerator.accumulate(model);
      const auto logits = model(batch.tokens.to(device));
      const auto loss_sum = torch::nn::functional::cross_entropy(
          logits.flatten(0, 1), batch.targets.to(device).flatten(),
          torch::nn::functional::CrossEntropyFuncOptions()
              .reduction(torch::kSum)
              .ignore_index(examples::no_target));
      accelerator.backward(loss_sum, batch.count);
      step_loss += loss_sum.item<double>() / tokens;
    }
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    if ((step + 1) % 20 == 0) std::printf("step %4ld: loss %.4f\n", step + 1, step_loss);
  }

  net->eval();
  const auto sample =
      examples::generate(net, documents.text(), documents.beginning(2), 300, device);
  std::printf("\n%s\n", sample.c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
