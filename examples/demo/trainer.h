// One network in training: the heart of the demo, where Accelerant is used.
#pragma once

#include <accelerant/amp/grad_scaler.h>
#include <torch/torch.h>

#include "network.h"
#include "precision.h"

namespace demo {

// What a step found out, still on the device: reading it waits.
struct StepOutput {
  torch::Tensor loss;     // mean over the batch
  torch::Tensor correct;  // number of samples classified correctly
};

class Trainer {
 public:
  // Draws the weights from torch's random numbers.
  Trainer(Precision precision, torch::Device device, int64_t width);

  // Forward, backward and update on one batch.
  StepOutput step(const torch::Tensor& images, const torch::Tensor& labels, double learning_rate);

  // How many of the samples are classified correctly, on the device. Does not train.
  torch::Tensor count_correct(const torch::Tensor& images, const torch::Tensor& labels);

  const accelerant::GradScaler& scaler() const { return scaler_; }

 private:
  torch::Tensor forward(const torch::Tensor& images);

  Precision precision_;
  torch::Device device_;
  Network network_;
  torch::optim::AdamW optimizer_;
  accelerant::GradScaler scaler_;
};

}  // namespace demo
