#include "trainer.h"

#include <accelerant/amp/autocast.h>

namespace demo {
namespace {

accelerant::AutocastOptions autocast_options(Precision precision, torch::Device device) {
  if (precision == Precision::fp32) return {.device_type = device.type(), .enabled = false};
  return {.device_type = device.type(),
          .dtype = precision == Precision::fp16 ? torch::kHalf : torch::kBFloat16};
}

Network network_on(torch::Device device, int64_t width) {
  Network network(width);
  network->to(device);
  return network;
}

}  // namespace

Trainer::Trainer(Precision precision, torch::Device device, int64_t width)
    : precision_(precision),
      device_(device),
      network_(network_on(device, width)),
      optimizer_(network_->parameters(), torch::optim::AdamWOptions()),
      scaler_({.device = device.type(),
               // The demo is short: grow often enough to see the scale move.
               .growth_interval = 200,
               // bfloat16 has the range of float32, so only float16 needs scaling.
               .enabled = precision == Precision::fp16}) {
  scaler_.name_parameters(network_->named_parameters());
}

torch::Tensor Trainer::forward(const torch::Tensor& images) {
  const accelerant::AutocastGuard autocast(autocast_options(precision_, device_));
  return network_(images).to(torch::kFloat32);
}

StepOutput Trainer::step(const torch::Tensor& images, const torch::Tensor& labels,
                         double learning_rate) {
  network_->train();
  for (auto& group : optimizer_.param_groups()) group.options().set_lr(learning_rate);

  const torch::Tensor output = forward(images);
  const torch::Tensor loss = torch::cross_entropy_loss(output, labels);
  scaler_.scale(loss).backward();
  scaler_.step(optimizer_);
  scaler_.update();
  optimizer_.zero_grad();
  return {.loss = loss.detach(), .correct = output.detach().argmax(1).eq(labels).sum()};
}

torch::Tensor Trainer::count_correct(const torch::Tensor& images, const torch::Tensor& labels) {
  const torch::NoGradGuard no_grad;
  network_->eval();
  return forward(images).argmax(1).eq(labels).sum();
}

}  // namespace demo
