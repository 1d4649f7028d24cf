// Trains a small convolutional network on Fashion-MNIST with Accelerant and tests it after every
// epoch. classifier_plain.cpp is the same without it; the difference is the lesson.
//
//   example-classifier-accelerated [--project DIR] [EPOCHS [DATA_FOLDER [SAMPLES]]]
//
// DIR: save the state of the training there, and resume from it when started again.
// SAMPLES: how many of the 60,000 pictures to train on. Default: all.
//
// `accelerant launch --num-processes 2 --mixed-precision bf16 example-classifier-accelerated` trains
// in two processes and in bfloat16.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <string>

#include "common/arguments.h"
#include "common/classifier.h"
#include "common/fashion_mnist.h"
#include "common/image_dataset.h"

int main(int argc, char** argv) {
  const std::string project = examples::take_option(argc, argv, "--project");
  const int64_t epochs = examples::number_at(1, argc, argv, 2);
  const auto folder = examples::text_at(2, argc, argv, examples::fashion_mnist_folder);
  const int64_t samples = examples::number_at(3, argc, argv, 60'000);
  const int64_t batch_size = 128;

  accelerant::Accelerator accelerator(
      {.project = {.dir = project, .total_limit = 2, .resume = project.empty() ? "no" : "auto"}});
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
  auto [model, optimizer, train, test] = accelerator.prepare(net, adamw, train_loader, test_loader);

  if (const auto resumed = accelerator.resumed()) {
    accelerator.print("resuming after epoch", resumed->epoch);
  }
  for (const int64_t epoch : accelerator.epochs(epochs)) {
    model.train();
    int64_t step = 0;
    for (auto&& [images, labels] : train) {
      optimizer.zero_grad();
      const auto loss = torch::nn::functional::cross_entropy(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      if (++step % 100 == 0) {
        accelerator.print("epoch", epoch + 1, "step", step, "loss", loss.item<double>());
      }
    }

    model.eval();
    const torch::NoGradGuard no_grad;
    int64_t hits = 0;
    int64_t seen = 0;
    for (auto&& [images, labels] : test) {
      const auto right = accelerator.gather_for_metrics(model(images).argmax(1).eq(labels));
      hits += right.sum().item<int64_t>();
      seen += right.size(0);
    }
    const double accuracy = 100.0 * static_cast<double>(hits) / static_cast<double>(seen);
    accelerator.print("epoch", epoch + 1, "test accuracy", accuracy, "%");
    if (!project.empty()) accelerator.save_state({.async = true});
  }
}
