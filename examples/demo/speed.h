// How fast a precision trains, against float32 on the same machine in the same minute.
#pragma once

#include <torch/torch.h>

#include "common/fashion_mnist.h"
#include "options.h"

namespace demo {

struct SpeedComparison {
  double samples_per_second = 0;       // in the chosen precision
  double fp32_samples_per_second = 0;  // of an identical network
  double ratio() const { return samples_per_second / fp32_samples_per_second; }
};

// Trains two fresh, identical networks in turn, a few steps each. The pictures in `data` are floats
// on `device`. Throws Interrupted.
SpeedComparison compare_with_fp32(const Options& options, const examples::FashionMnist& data,
                                  torch::Device device);

}  // namespace demo
