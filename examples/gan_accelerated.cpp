// Trains a small DCGAN on Fashion-MNIST with Accelerant: two models, two optimizers, one scaler. At
// the end 64 generated pictures are written to a PGM file, which most picture viewers show.
// gan_plain.cpp is the same without Accelerant; the difference is the lesson.
//
//   example-gan-accelerated [STEPS [DATA_FOLDER [PICTURE_FILE]]]
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <string>

#include "common/arguments.h"
#include "common/fashion_mnist.h"
#include "common/gan.h"
#include "common/image_dataset.h"

int main(int argc, char** argv) {
  const int64_t steps = examples::number_at(1, argc, argv, 900);
  const auto folder = examples::text_at(2, argc, argv, examples::fashion_mnist_folder);
  const auto picture = examples::text_at(3, argc, argv, "gan.pgm");
  const int64_t batch_size = 64;

  const auto data = examples::load_fashion_mnist(folder).train;
  auto train_set =  // pixels from -1 to 1, as the generator makes them
      examples::ImageDataset(data.images.to(torch::kFloat).div_(127.5).sub_(1), data.labels)
          .map(torch::data::transforms::Stack<>());
  torch::manual_seed(1);
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      std::move(train_set), torch::data::DataLoaderOptions(batch_size).drop_last(true));

  accelerant::Accelerator accelerator;
  const torch::Device device = accelerator.device();
  examples::Gan gan;
  auto [generator, discriminator, generator_optimizer, discriminator_optimizer, batches] =
      accelerator.prepare(gan.generator, gan.discriminator, gan.generator_optimizer,
                          gan.discriminator_optimizer, loader);

  const auto fixed_noise = torch::randn({64, examples::noise_size}, device);
  const auto real_labels = torch::full({batch_size}, 0.9, device);  // not 1: keeps the judge humble
  const auto fake_labels = torch::zeros({batch_size}, device);

  for (int64_t step = 0; step < steps;) {
    for (auto&& [real, labels] : batches) {
      const auto fake = generator(torch::randn({batch_size, examples::noise_size}, device));

      discriminator_optimizer.zero_grad();
      const auto judged_real = discriminator(real);
      const auto judged_fake = discriminator(fake.detach());
      const auto discriminator_loss =
          torch::binary_cross_entropy_with_logits(judged_real, real_labels) +
          torch::binary_cross_entropy_with_logits(judged_fake, fake_labels);
      accelerator.backward(discriminator_loss);
      discriminator_optimizer.step();

      generator_optimizer.zero_grad();
      const auto generator_loss =
          torch::binary_cross_entropy_with_logits(discriminator(fake), real_labels);
      accelerator.backward(generator_loss);
      generator_optimizer.step();

      if (++step % 50 == 0) {
        accelerator.print("step", step, "discriminator loss", discriminator_loss.item<double>(),
                          "generator loss", generator_loss.item<double>());
      }
      if (step == steps) break;
    }
  }

  generator.eval();
  const torch::NoGradGuard no_grad;
  if (accelerator.is_main_process()) examples::write_grid(picture, generator(fixed_noise), 8);
  accelerator.print("wrote 64 generated pictures to", picture);
}
