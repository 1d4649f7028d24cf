// A small convolutional network for 28 x 28 pictures in ten classes.
#pragma once

#include <torch/torch.h>

namespace examples {

class ClassifierImpl : public torch::nn::Module {
 public:
  ClassifierImpl() {
    register_module("layers", layers_);
    layers_->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)));
    layers_->push_back(torch::nn::ReLU());
    layers_->push_back(torch::nn::MaxPool2d(2));
    layers_->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).padding(1)));
    layers_->push_back(torch::nn::ReLU());
    layers_->push_back(torch::nn::MaxPool2d(2));
    layers_->push_back(torch::nn::Flatten());
    layers_->push_back(torch::nn::Linear(32 * 7 * 7, 128));
    layers_->push_back(torch::nn::ReLU());
    layers_->push_back(torch::nn::Dropout(0.2));
    layers_->push_back(torch::nn::Linear(128, 10));
  }

  // Pictures [n, 1, 28, 28] to logits [n, 10].
  torch::Tensor forward(const torch::Tensor& images) { return layers_->forward(images); }

 private:
  torch::nn::Sequential layers_;
};
TORCH_MODULE(Classifier);

}  // namespace examples
