// The two training loops that the demo compares. The files plain_loop.cpp and accelerant_loop.cpp
// do the same, and differ only in what Accelerant changes.
#pragma once

#include "common/fashion_mnist.h"
#include "options.h"
#include "recorder.h"

namespace demo {

constexpr double largest_rate = 2e-3;  // of the learning rates
constexpr double largest_norm = 1.0;   // of the gradients; longer ones are clipped
constexpr int64_t test_batch = 1000;   // pictures
constexpr int64_t updates_of_warmup = 50;

// Both return the accuracy on the test set, 0 to 1.
double train_plain(const Options& options, const examples::FashionMnist& data, Recorder& recorder);
double train_with_accelerant(const Options& options, const examples::FashionMnist& data,
                             Recorder& recorder);

}  // namespace demo
