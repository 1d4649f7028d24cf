// Trains a small network on Fashion-MNIST in mixed precision: float16 on a GPU, bfloat16 on a CPU,
// where few have instructions for float16.
// mnist_plain.cpp is the same program without Accelerant; the difference is the lesson.
//
//   example-mnist-amp [STEPS [DATA_FOLDER]]
#include <accelerant/accelerant.h>
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
  const auto type = device.is_cuda() ? torch::kHalf : torch::kBFloat16;
  accelerant::GradScaler scaler({.device = device.type(), .enabled = type == torch::kHalf});

  for (int64_t step = 1; step <= steps; ++step) {
    const auto batch = torch::randint(images.size(0), {128}, labels.options());
    torch::Tensor loss;
    {
      const accelerant::AutocastGuard autocast({device.type(), type});
      const auto output = net->forward(images.index_select(0, batch));
      loss = torch::cross_entropy_loss(output, labels.index_select(0, batch));
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    optimizer.zero_grad();
    if (step % 50 == 0) std::printf("step %4ld: loss %.4f\n", step, loss.item<double>());
  }

  const torch::NoGradGuard no_grad;
  const auto output = net->forward(examples::normalised(data.test.images).to(device));
  const auto hits = output.argmax(1).eq(data.test.labels.to(device));
  std::printf("test accuracy %.1f %%\n", 100 * hits.to(torch::kFloat32).mean().item<double>());
}
