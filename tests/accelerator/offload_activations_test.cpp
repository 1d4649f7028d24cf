// AcceleratorOptions::offload.activations: checkpoints in prepared models keep their inputs in host
// memory.
#include <accelerant/nn/activation_checkpoint.h>
#include <gtest/gtest.h>

#include "accelerator/offloaded_training.h"
#include "nn/offloaded_inputs.h"
#include "support/on_device.h"

namespace accelerator_test {
namespace {

using accelerant::Accelerator;
using accelerant::Precision;

struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(int64_t width) {
    for (int i = 0; i < 5; ++i) {
      layers.push_back(
          register_module("layer" + std::to_string(i), torch::nn::Linear(width, width)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    offloads.push_back(accelerant::nn::detail::ActivationOffloadScope::is_on());
    for (auto& layer : layers) {
      x = accelerant::nn::checkpoint(
          [layer](const at::Tensor& h) mutable {
            return h + torch::dropout(layer(h).tanh(), 0.2, true);
          },
          x);
    }
    return x;
  }
  std::vector<torch::nn::Linear> layers;
  std::vector<bool> offloads;
};
TORCH_MODULE(Deep);

class OffloadActivations : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    accelerant::nn::detail::offloads_on_every_device() = true;
  }
  void TearDown() override { accelerant::nn::detail::offloads_on_every_device() = false; }

  std::vector<at::Tensor> train(Precision precision, bool activations, bool optimizer) {
    const int64_t width = on_cuda() ? 256 : 8;
    torch::manual_seed(3);
    Deep net(width);
    accelerant::AcceleratorOptions options{.device = device(), .mixed_precision = precision};
    options.offload = {.optimizer = optimizer, .activations = activations};
    options.warnings.slow_precision = false;
    Accelerator accelerator(options);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
    auto [model, prepared] = accelerator.prepare(net, sgd);
    torch::manual_seed(4);
    for (int i = 0; i < 4; ++i) {
      const at::Tensor x = torch::randn({on_cuda() ? 512 : 4, width}).to(device());
      accelerator.backward(model(x).to(at::kFloat).square().mean());
      prepared.step();
      prepared.zero_grad();
    }
    EXPECT_EQ(net->offloads, std::vector<bool>(4, activations));
    EXPECT_FALSE(accelerant::nn::detail::ActivationOffloadScope::is_on());
    std::vector<at::Tensor> parameters;
    for (const at::Tensor& parameter : net->parameters()) {
      parameters.push_back(parameter.detach().cpu());
    }
    return parameters;
  }
};

TEST_P(OffloadActivations, TrainToTheSameBits) {
  at::globalContext().setDeterministicCuDNN(true);
  for (const Precision precision : {Precision::no, Precision::bf16, Precision::fp16}) {
    for (const bool optimizer : {false, true}) {
      expect_bits(train(precision, true, optimizer), train(precision, false, optimizer));
    }
  }
}

ON_EVERY_DEVICE(OffloadActivations);

}  // namespace
}  // namespace accelerator_test
