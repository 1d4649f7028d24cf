// Trains over the whole data set, with a progress bar, and tests the result.
#pragma once

#include <torch/torch.h>

#include "common/fashion_mnist.h"
#include "options.h"

namespace demo {

struct TrainingResult {
  double test_accuracy = 0;  // 0 to 1
  double seconds = 0;        // of training, without the test
  int64_t samples = 0;       // seen in training
  int64_t steps = 0;
  int64_t skipped_steps = 0;
  double final_scale = 1;
};

// The pictures in `data` are floats on `device`. Throws Interrupted.
TrainingResult train(const Options& options, const examples::FashionMnist& data,
                     torch::Device device);

}  // namespace demo
