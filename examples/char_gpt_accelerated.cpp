// Trains a small GPT on the characters of a text with Accelerant: gradients accumulated over
// micro-batches, a loss that is the mean over all tokens of a step, clipping, and a learning rate
// that warms up and falls along a cosine. At the end it writes a short text of its own.
// char_gpt_plain.cpp is the same without Accelerant; the difference is the lesson.
//
//   example-char-gpt-accelerated [--project DIR] [STEPS [TEXT_FILE]]
//
// DIR: save the state of the training there, and resume from it when started again.
// ACCELERATE_MIXED_PRECISION=bf16 in the environment makes it train in bfloat16.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>

#include "common/arguments.h"
#include "common/char_gpt.h"
#include "common/documents.h"

int main(int argc, char** argv) {
  const std::string project = examples::take_option(argc, argv, "--project");
  const int64_t steps = examples::number_at(1, argc, argv, 400);
  const auto path = examples::text_at(2, argc, argv, EXAMPLES_DATA_FOLDER "/field_guide.txt");
  const int64_t micro_batches = 2;  // per step
  const int64_t batch_size = 16;    // documents in a micro-batch
  const double largest_rate = 3e-3;
  const int64_t warmup = std::min<int64_t>(20, steps / 5 + 1);

  const examples::Documents documents(path);
  accelerant::Accelerator accelerator(
      {.gradient_accumulation = {.steps = micro_batches},
       .project = {.dir = project, .total_limit = 2, .resume = project.empty() ? "no" : "auto"}});
  const torch::Device device = accelerator.device();
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
  accelerator.print(documents.size(), "documents,", options.vocabulary, "symbols,", parameters,
                    "parameters");

  // Without a loop over a prepared loader the Accelerator cannot see how far the training is. So
  // epochs() counts the steps, and the state is saved where one begins, before it draws documents.
  if (const auto resumed = accelerator.resumed()) {
    accelerator.print("resuming after step", resumed->epoch);
  }
  for (const int64_t step : accelerator.epochs(steps)) {
    if (!project.empty() && step > 0 && step % 20 == 0) accelerator.save_state({.async = true});
    accelerator.stop_if_preempted();  // by SIGTERM: saves, and ends with exit code 75
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
    if ((step + 1) % 20 == 0) accelerator.print("step", step + 1, "loss", step_loss);
  }

  model.eval();
  const auto sample =
      examples::generate(net, documents.text(), documents.beginning(2), 300, device);
  accelerator.print("\n" + sample);
}
