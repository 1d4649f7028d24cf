#include "data.h"

#include <accelerant/core/error.h>
#include <accelerant/order/sampler.h>
#include <accelerant/watch/environment.h>

namespace demo {

examples::FashionMnist load_data(const Options& options) {
  examples::FashionMnist data = examples::load_fashion_mnist(options.data);
  if (options.limit > 0) {
    data.train.images = data.train.images.slice(0, 0, options.limit);
    data.train.labels = data.train.labels.slice(0, 0, options.limit);
  }
  data.train.images = examples::normalised(data.train.images);
  data.test.images = examples::normalised(data.test.images);
  return data;
}

int64_t count_updates(const Options& options, int64_t pictures) {
  return options.epochs * ((pictures + options.batch_size - 1) / options.batch_size);
}

std::vector<torch::Tensor> shuffled_batches(const Options& options, int64_t pictures,
                                            int64_t epoch) {
  const accelerant::data::RandomSampler sampler(pictures);
  const auto order = sampler.order(static_cast<uint64_t>(options.seed), epoch);
  return torch::tensor(order, torch::kLong).split(options.batch_size);
}

torch::Device device_of(const Options& options) {
  const bool has_cuda = torch::cuda::is_available();
  if (options.device == "cuda" && !has_cuda) {
    throw accelerant::Error("--device cuda: this libtorch finds no CUDA device; try --device cpu");
  }
  if (options.device == "cpu" || !has_cuda) return torch::kCPU;
  const auto process = accelerant::dist::Environment::detect().local_process_index;
  return {torch::kCUDA, static_cast<torch::DeviceIndex>(
                            process % static_cast<int64_t>(torch::cuda::device_count()))};
}

}  // namespace demo
