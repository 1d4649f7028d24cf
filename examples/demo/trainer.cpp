#include "trainer.h"

namespace demo {
namespace {

accelerant::Precision mixed_precision(Precision precision) {
  switch (precision) {
    case Precision::fp16:
      return accelerant::Precision::fp16;
    case Precision::bf16:
      return accelerant::Precision::bf16;
    case Precision::fp32:
      break;
  }
  return accelerant::Precision::no;
}

}  // namespace

Trainer::Trainer(Precision precision, torch::Device device, int64_t width, double learning_rate)
    : accelerator_({.device = device,
                    .mixed_precision = mixed_precision(precision),
                    // The batch size is that of all processes together.
                    .data_loader = {.split_batches = true},
                    // The demo is short: grow often enough to see the scale move.
                    .scaler = {.growth_interval = 200}}),
      network_(width),
      adamw_(network_->parameters(), torch::optim::AdamWOptions(learning_rate)),
      model_(accelerator_.prepare_model(network_)),
      optimizer_(accelerator_.prepare_optimizer(adamw_)) {}

StepOutput Trainer::step(const torch::Tensor& images, const torch::Tensor& labels) {
  model_.train();
  const auto window = accelerator_.accumulate(model_);
  const torch::Tensor output = model_(images);
  const torch::Tensor loss = torch::cross_entropy_loss(output, labels);
  accelerator_.backward(loss);
  optimizer_.step();
  optimizer_.zero_grad();
  return {.loss = loss.detach(), .correct = output.detach().argmax(1).eq(labels).sum()};
}

torch::Tensor Trainer::is_correct(const torch::Tensor& images, const torch::Tensor& labels) {
  const torch::NoGradGuard no_grad;
  model_.eval();
  return model_(images).argmax(1).eq(labels);
}

}  // namespace demo
