#include "network.h"

namespace demo {

NetworkImpl::NetworkImpl(int64_t width)
    // The norms that follow have a bias of their own.
    : conv1_(torch::nn::Conv2dOptions(1, width, 5).stride(2).padding(2).bias(false)),
      norm1_(width),
      conv2_(torch::nn::Conv2dOptions(width, 2 * width, 3).stride(2).padding(1).bias(false)),
      norm2_(2 * width),
      scores_(2 * width * 7 * 7, 10) {
  register_module("conv1", conv1_);
  register_module("norm1", norm1_);
  register_module("conv2", conv2_);
  register_module("norm2", norm2_);
  register_module("scores", scores_);
}

torch::Tensor NetworkImpl::forward(const torch::Tensor& images) {
  torch::Tensor x = norm1_(conv1_(images)).relu();  // 14 x 14
  x = norm2_(conv2_(x)).relu();                     // 7 x 7
  return scores_(x.flatten(1));
}

}  // namespace demo
