// What both loops of the demo train on: the pictures, their order, and the device.
#pragma once

#include <torch/torch.h>

#include <vector>

#include "common/fashion_mnist.h"
#include "options.h"

namespace demo {

// Fashion-MNIST with pictures as floats, in host memory; as many to train on as the options say.
examples::FashionMnist load_data(const Options& options);

// The updates of a whole training on so many pictures.
int64_t count_updates(const Options& options, int64_t pictures);

// The rows of the batches of an epoch, shuffled: the very order in which Accelerant's loader visits
// them, so that both loops see the same batches.
std::vector<torch::Tensor> shuffled_batches(const Options& options, int64_t pictures,
                                            int64_t epoch);

// The CPU or a GPU; processes share the GPUs if there are not enough of them.
torch::Device device_of(const Options& options);

}  // namespace demo
