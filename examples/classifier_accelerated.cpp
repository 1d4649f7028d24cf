// Trains a small convolutional network on Fashion-MNIST with Accelerant and tests it after every
// epoch. classifier_plain.cpp is the same without it; the difference is the lesson.
//
//   example-classifier-accelerated [--project DIR] [EPOCHS [DATA_FOLDER [SAMPLES]]]
//
// DIR: save the state of the training there, and go on from it when started again.
// SAMPLES: train on the first so many pictures only.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

#include "common/classifier.h"
#include "common/fashion_mnist.h"
#include "common/image_dataset.h"
#include "common/take_option.h"

int main(int argc, char** argv) try {
  const std::string project = examples::take_option(argc, argv, "--project");
  const int64_t epochs = argc > 1 ? std::stoll(argv[1]) : 2;
  const std::string folder = argc > 2 ? argv[2] : examples::fashion_mnist_folder;
  const int64_t samples = argc > 3 ? std::stoll(argv[3]) : 60'000;
  const int64_t batch_size = 128;

  const auto data = examples::load_fashion_mnist(folder);
  auto train_set =
      examples::ImageDataset(examples::normalised(data.train.images.slice(0, 0, samples)),
                             data.train.labels.slice(0, 0, samples))
          .map(torch::data::transforms::Stack<>());
  auto test_set = examples::ImageDataset(examples::normalised(data.test.images), data.test.labels)
                      .map(torch::data::transforms::Stack<>());

  torch::manual_seed(1);
  auto train_loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      std::move(train_set), torch::data::DataLoaderOptions(batch_size));
  auto test_loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      std::move(test_set), torch::data::DataLoaderOptions(1000));

  examples::Classifier net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(2e-3));
  accelerant::Accelerator accelerator(
      {.mixed_precision = accelerant::Precision::bf16,
       .project = {.dir = project, .total_limit = 2, .resume = project.empty() ? "no" : "auto"}});
  auto [model, optimizer, train, test] = accelerator.prepare(net, adamw, train_loader, test_loader);

  const auto epochs_left = accelerator.epochs(epochs);  // all of them, unless it resumes
  if (*epochs_left.begin() > 0) std::printf("resuming after epoch %ld\n", *epochs_left.begin());
  for (const int64_t epoch : epochs_left) {
    net->train();
    int64_t step = 0;
    for (auto&& [images, labels] : train) {
      optimizer.zero_grad();
      const auto loss = torch::nn::functional::cross_entropy(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      if (++step % 100 == 0) {
        std::printf("epoch %ld, step %4ld: loss %.4f\n", epoch + 1, step, loss.item<double>());
      }
    }

    net->eval();
    const torch::NoGradGuard no_grad;
    int64_t hits = 0;
    int64_t seen = 0;
    for (auto&& [images, labels] : test) {
      const auto guesses = model(images).argmax(1);
      hits += guesses.eq(labels).sum().item<int64_t>();
      seen += labels.size(0);
    }
    std::printf("epoch %ld: test accuracy %.2f %%\n", epoch + 1,
                100.0 * static_cast<double>(hits) / static_cast<double>(seen));
    if (!project.empty()) accelerator.save_state({.async = true});
  }
  return 0;
} catch (const accelerant::Preempted& preempted) {  // by SIGTERM, as schedulers send it
  std::fprintf(stderr, "%s\n", preempted.what());
  return accelerant::kPreemptedExitCode;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
