#include "network.h"

namespace demo {

NetworkImpl::NetworkImpl(int64_t width)
    : layers_(torch::nn::Flatten(), torch::nn::Linear(28 * 28, width), torch::nn::ReLU(),
              torch::nn::Dropout(0.1), torch::nn::Linear(width, width), torch::nn::ReLU(),
              torch::nn::Dropout(0.1), torch::nn::Linear(width, 10)) {
  register_module("layers", layers_);
}

torch::Tensor NetworkImpl::forward(const torch::Tensor& images) { return layers_->forward(images); }

}  // namespace demo
