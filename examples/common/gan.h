// A small DCGAN for 28 x 28 pictures: a network that makes pictures, one that judges them.
#pragma once

#include <torch/torch.h>

#include <fstream>
#include <stdexcept>
#include <string>

namespace examples {

constexpr int64_t noise_size = 64;

// Noise [n, 64] to pictures [n, 1, 28, 28] from -1 to 1.
class GeneratorImpl : public torch::nn::Module {
 public:
  GeneratorImpl() {
    namespace nn = torch::nn;
    register_module("layers", layers_);
    layers_->push_back(nn::Linear(nn::LinearOptions(noise_size, 64 * 7 * 7).bias(false)));
    layers_->push_back(nn::Unflatten(nn::UnflattenOptions(1, {64, 7, 7})));
    layers_->push_back(nn::BatchNorm2d(64));
    layers_->push_back(nn::ReLU());
    layers_->push_back(nn::ConvTranspose2d(
        nn::ConvTranspose2dOptions(64, 32, 4).stride(2).padding(1).bias(false)));
    layers_->push_back(nn::BatchNorm2d(32));
    layers_->push_back(nn::ReLU());
    layers_->push_back(
        nn::ConvTranspose2d(nn::ConvTranspose2dOptions(32, 1, 4).stride(2).padding(1)));
    layers_->push_back(nn::Tanh());
  }

  torch::Tensor forward(const torch::Tensor& noise) { return layers_->forward(noise); }

 private:
  torch::nn::Sequential layers_;
};
TORCH_MODULE(Generator);

// Pictures [n, 1, 28, 28] to logits [n]: positive for "real".
class DiscriminatorImpl : public torch::nn::Module {
 public:
  DiscriminatorImpl() {
    namespace nn = torch::nn;
    register_module("layers", layers_);
    const auto leaky = nn::LeakyReLUOptions().negative_slope(0.2);
    layers_->push_back(nn::Conv2d(nn::Conv2dOptions(1, 32, 4).stride(2).padding(1)));
    layers_->push_back(nn::LeakyReLU(leaky));
    layers_->push_back(nn::Conv2d(nn::Conv2dOptions(32, 64, 4).stride(2).padding(1).bias(false)));
    layers_->push_back(nn::BatchNorm2d(64));
    layers_->push_back(nn::LeakyReLU(leaky));
    layers_->push_back(nn::Flatten());
    layers_->push_back(nn::Linear(64 * 7 * 7, 1));
  }

  torch::Tensor forward(const torch::Tensor& images) { return layers_->forward(images).flatten(); }

 private:
  torch::nn::Sequential layers_;
};
TORCH_MODULE(Discriminator);

// Weights as in the paper: normal with deviation 0.02, those of the normalisation around 1.
inline void initialise(torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  net.apply([](torch::nn::Module& module) {
    if (auto* const norm = module.as<torch::nn::BatchNorm2d>()) {
      norm->weight.normal_(1.0, 0.02);
      return;
    }
    for (auto& parameter : module.named_parameters(/*recurse=*/false)) {
      if (parameter.key() == "weight") parameter.value().normal_(0.0, 0.02);
    }
  });
}

// Both networks, ready to be trained, and an optimizer for each.
struct Gan {
  Generator generator;
  Discriminator discriminator;
  torch::optim::Adam generator_optimizer{generator->parameters(), adam_options()};
  torch::optim::Adam discriminator_optimizer{discriminator->parameters(), adam_options()};

  Gan() {
    initialise(*generator);
    initialise(*discriminator);
  }

 private:
  static torch::optim::AdamOptions adam_options() {
    return torch::optim::AdamOptions(5e-4).betas({0.5, 0.999});
  }
};

// Writes pictures [rows * rows, 1, h, w] from -1 to 1 as one square picture, a grey PGM file.
inline void write_grid(const std::string& path, const torch::Tensor& pictures, int64_t rows) {
  const int64_t height = pictures.size(2);
  const int64_t width = pictures.size(3);
  const auto grid = pictures.detach()
                        .to(torch::kCPU, torch::kFloat)
                        .view({rows, rows, height, width})
                        .permute({0, 2, 1, 3})
                        .add(1)
                        .mul(127.5)
                        .round()
                        .clamp(0, 255)
                        .to(torch::kUInt8)
                        .contiguous();
  std::ofstream file(path, std::ios::binary);
  file << "P5\n" << rows * width << ' ' << rows * height << "\n255\n";
  file.write(static_cast<const char*>(grid.const_data_ptr()), grid.numel());
  if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace examples
