// Trains a small network on Fashion-MNIST in mixed precision and shows what it brings.
#include <accelerant/core/error.h>
#include <accelerant/watch/environment.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string>

#include "common/fashion_mnist.h"
#include "interrupt.h"
#include "options.h"
#include "speed.h"
#include "summary.h"
#include "training.h"

namespace demo {
namespace {

torch::Device choose_device(const Options& options) {
  const bool has_cuda = torch::cuda::is_available();
  if (options.device == "cuda" && !has_cuda) {
    throw accelerant::Error("--device cuda: this libtorch finds no CUDA device; try --device cpu");
  }
  if (options.device == "cpu" || !has_cuda) return torch::kCPU;
  at::globalContext().setDeterministicCuDNN(true);  // the same seed gives the same result
  // Each process of a machine takes a GPU of its own, as far as they go round.
  const auto process = accelerant::dist::Environment::detect().local_process_index;
  return {torch::kCUDA, static_cast<torch::DeviceIndex>(
                            process % static_cast<int64_t>(torch::cuda::device_count()))};
}

// Float pictures on the device, once: the set is small.
examples::FashionMnist prepare(examples::FashionMnist data, const Options& options,
                               torch::Device device) {
  if (options.limit > 0) {
    data.train.images = data.train.images.slice(0, 0, options.limit);
    data.train.labels = data.train.labels.slice(0, 0, options.limit);
  }
  for (examples::LabelledImages* part : {&data.train, &data.test}) {
    part->images = examples::normalised(part->images.to(device));
    part->labels = part->labels.to(device);
  }
  return data;
}

void run(Options options) {
  const torch::Device device = choose_device(options);
  // A GPU only shows what it can do when each step is large enough.
  if (options.width == 0) options.width = device.is_cuda() ? 512 : 16;
  if (options.batch_size == 0) options.batch_size = device.is_cuda() ? 1024 : 256;
  const auto data = prepare(examples::load_fashion_mnist(options.data), options, device);
  throw_if_interrupted();

  const auto environment = accelerant::dist::Environment::detect();
  if (environment.is_main_process()) {
    const std::string processes =
        environment.use_distributed()
            ? " with " + std::to_string(environment.num_processes) + " processes"
            : "";
    std::printf("Fashion-MNIST in %s on %s%s: %ld samples, %ld epoch%s, batches of %ld\n",
                name_of(options.precision), device.is_cuda() ? "the GPU" : "the CPU",
                processes.c_str(), data.train.labels.size(0), options.epochs,
                options.epochs == 1 ? "" : "s", options.batch_size);
    std::fflush(stdout);  // before the progress bar, also in a pipe that takes both streams
  }

  const TrainingResult training = train(options, data, device);
  std::optional<SpeedComparison> speed;
  if (options.precision != Precision::fp32) speed = compare_with_fp32(options, data, device);
  if (environment.is_main_process()) {
    std::printf("\n%s", summary(options, device, training, speed).c_str());
  }
}

// torch adds a stack trace to its messages; the first line says what is wrong.
int length_of_first_line(const char* text) { return static_cast<int>(std::strcspn(text, "\n")); }

}  // namespace
}  // namespace demo

int main(int argc, char** argv) try {
  demo::install_interrupt_handlers();
  if (const auto options = demo::parse_options(argc, argv)) demo::run(*options);
  return 0;
} catch (const demo::Interrupted& interrupted) {
  std::fprintf(stderr, "accelerant-demo: interrupted\n");
  return 128 + interrupted.signal;
} catch (const std::exception& error) {
  std::fprintf(stderr, "accelerant-demo: %.*s\n", demo::length_of_first_line(error.what()),
               error.what());
  return 1;
}
