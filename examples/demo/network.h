// The network of the demo.
#pragma once

#include <torch/torch.h>

namespace demo {

// Three linear layers: small enough for two CPU cores, with enough weights to keep an optimizer
// busy. Dropout draws random numbers, so a run resumes exactly only if they are restored, too.
class NetworkImpl : public torch::nn::Module {
 public:
  // `width`: units in each of the two hidden layers.
  explicit NetworkImpl(int64_t width);

  // Pictures [n, 1, 28, 28] to scores [n, 10].
  torch::Tensor forward(const torch::Tensor& images);

 private:
  torch::nn::Sequential layers_;
};
TORCH_MODULE(Network);

}  // namespace demo
