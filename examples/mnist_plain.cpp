// Trains a small network on Fashion-MNIST with plain libtorch, in float32.
// mnist_amp.cpp is the same program in mixed precision; the difference is the lesson.
//
//   example-mnist-plain [STEPS [DATA_FOLDER]]
#include <torch/torch.h>

#include <cstdio>
#include <string>

#include "common/arguments.h"
#include "common/fashion_mnist.h"

int main(int argc, char** argv) {
  const int64_t steps = examples::number_at(1, argc, argv, 400);
  const auto folder = examples::text_at(2, argc, argv, examples::fashion_mnist_folder);
  const auto data = examples::load_fashion_mnist(folder);
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
  const auto images = examples::normalised(data.train.images).to(device);
  const auto labels = data.train.labels.to(device);

  torch::manual_seed(1);
  torch::nn::Sequential net(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 5).stride(2).padding(2)), torch::nn::ReLU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).stride(2).padding(1)),
      torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(32 * 7 * 7, 10));
  net->to(device);
  torch::optim::AdamW optimizer(net->parameters(), 3e-3);

  for (int64_t step = 1; step <= steps; ++step) {
    const auto batch = torch::randint(images.size(0), {128}, labels.options());
    const auto output = net->forward(images.index_select(0, batch));
    const auto loss = torch::cross_entropy_loss(output, labels.index_select(0, batch));
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    if (step % 50 == 0) std::printf("step %4ld: loss %.4f\n", step, loss.item<double>());
  }

  const torch::NoGradGuard no_grad;
  const auto output = net->forward(examples::normalised(data.test.images).to(device));
  const auto hits = output.argmax(1).eq(data.test.labels.to(device));
  std::printf("test accuracy %.1f %%\n", 100 * hits.to(torch::kFloat32).mean().item<double>());
}
