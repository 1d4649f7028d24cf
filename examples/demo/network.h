// The network of the demo.
#pragma once

#include <torch/torch.h>

namespace demo {

// Two convolutions with stride 2 and a linear layer: small enough for two CPU cores.
class NetworkImpl : public torch::nn::Module {
 public:
  // `width`: channels of the first convolution; the second has twice as many.
  explicit NetworkImpl(int64_t width);

  // Pictures [n, 1, 28, 28] to scores [n, 10].
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
  torch::nn::Linear scores_;
};
TORCH_MODULE(Network);

}  // namespace demo
