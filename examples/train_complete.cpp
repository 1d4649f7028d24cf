// A complete training program: a starting point for your own. It trains a small convolutional
// network on Fashion-MNIST and
//
// - runs in one process or in several, on CPUs or GPUs, in float32 or in 16 bits;
// - can be stopped at any moment, even by kill -9, and goes on when it is started again;
// - tests the network after every epoch, with each process doing its part;
// - shows a progress bar, or plain lines where there is no terminal;
// - saves the trained model as model.safetensors, which Python opens as well.
//
//   example-train-complete [--project DIR] [EPOCHS [DATA_FOLDER [SAMPLES]]]
//   accelerant launch --num-processes 2 --mixed-precision bf16 example-train-complete
//
// DIR: where checkpoints and the model go. Default: runs/train_complete. To begin anew, remove it.
// SAMPLES: how many of the 60,000 pictures to train on. Default: all.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <string>

#include "common/arguments.h"
#include "common/classifier.h"
#include "common/fashion_mnist.h"

namespace data = accelerant::data;

// There is no try and catch around main: an exception that nobody catches ends the process, and
// `accelerant launch` shows it as the cause and stops the other processes.
int main(int argc, char** argv) {
  const auto project = examples::take_option(argc, argv, "--project", "runs/train_complete");
  const int64_t epochs = examples::number_at(1, argc, argv, 3);
  const auto folder = examples::text_at(2, argc, argv, examples::fashion_mnist_folder);
  const int64_t samples = examples::number_at(3, argc, argv, 60'000);
  constexpr int64_t save_every = 50;  // updates

  // Precision and device come from the launcher or the environment. With resume = "auto", prepare()
  // loads the newest checkpoint in the project, if there is one.
  accelerant::Accelerator accelerator(
      {.project = {.dir = project, .total_limit = 2, .resume = "auto"}});
  accelerant::set_seed(1);  // before the network draws its weights

  const auto [train_part, test_part] = examples::load_fashion_mnist(folder);
  const auto train_batches =
      data::loader(data::tensors(examples::normalised(train_part.images.slice(0, 0, samples)),
                                 train_part.labels.slice(0, 0, samples)),
                   {.batch_size = 64, .shuffle = true, .workers = 1});  // of each process
  const auto test_batches = data::loader(
      data::tensors(examples::normalised(test_part.images), test_part.labels), {.batch_size = 500});

  examples::Classifier net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(2e-3));
  const int64_t updates = epochs * accelerator.updates_per_epoch(train_batches);
  auto cosine = accelerant::optim::cosine_with_warmup(
      adamw, {.warmup_steps = updates / 20, .total_steps = updates});

  // From here on the loop uses these, and not the originals.
  auto [model, optimizer, train, test, scheduler] =
      accelerator.prepare(net, adamw, train_batches, test_batches, cosine);
  int64_t update = 0;
  if (const auto resumed = accelerator.resumed()) {
    update = resumed->updates;
    accelerator.print("resuming from", resumed->path, "after update", update, "of", updates);
  }

  for (const int64_t epoch : accelerator.epochs(epochs)) {  // those that are left
    model.train();
    accelerant::ProgressBar bar({.total = train.dataset_length().value(),
                                 .initial = train.position(),  // above 0 if it is resumed
                                 .description = "epoch " + std::to_string(epoch + 1),
                                 .unit = "picture",
                                 .enabled = accelerator.is_local_main_process()});
    for (auto&& [images, labels] : train) {
      const auto loss = torch::nn::functional::cross_entropy(model(images), labels);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(model, 1.0);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      if (bar.due() || train.is_last_batch()) bar.set("loss", loss.item<double>());
      bar.advance(train.current_samples());
      // Written in the background. What is not yet whole when the program dies does not count.
      if (++update % save_every == 0) accelerator.save_state({.async = true});
    }
    bar.finish();

    model.eval();
    const torch::NoGradGuard no_grad;
    int64_t right = 0;
    int64_t seen = 0;
    for (auto&& [images, labels] : test) {
      // What all processes found, each picture once: every process computes the same sums.
      const auto hits = accelerator.gather_for_metrics(model(images).argmax(1).eq(labels));
      right += hits.sum().item<int64_t>();
      seen += hits.size(0);
    }
    accelerator.print("epoch", epoch + 1, "test accuracy",
                      100.0 * static_cast<double>(right) / static_cast<double>(seen), "%");
  }

  accelerator.save_state();
  accelerator.save_model(model, project + "/model");
  accelerator.print("saved", project + "/model/model.safetensors");
}
