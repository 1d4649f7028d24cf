// One network in training: the heart of the demo, where Accelerant is used.
#pragma once

#include <accelerant/accelerant.h>
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
  Trainer(Precision precision, torch::Device device, int64_t width, double learning_rate);

  // The prepared objects refer to the ones beside them.
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Forward, backward and update on one batch.
  StepOutput step(const torch::Tensor& images, const torch::Tensor& labels);

  // Which of the samples are classified correctly, on the device. Does not train.
  torch::Tensor is_correct(const torch::Tensor& images, const torch::Tensor& labels);

  accelerant::Accelerator& accelerator() { return accelerator_; }
  torch::optim::AdamW& adamw() { return adamw_; }

 private:
  accelerant::Accelerator accelerator_;
  Network network_;
  torch::optim::AdamW adamw_;
  accelerant::Model<Network> model_;
  accelerant::Optimizer optimizer_;
};

}  // namespace demo
