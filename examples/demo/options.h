// The demo's command line.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "precision.h"

namespace demo {

struct Options {
  Precision precision = Precision::fp16;
  int64_t epochs = 3;           // passes over the training set
  int64_t batch_size = 0;       // samples; 0: 256 on a CPU, 1024 on a GPU
  std::string data;             // the folder of Fashion-MNIST's files
  std::string device = "auto";  // auto, cpu or cuda
  int64_t seed = 1;             // at least 0
  int64_t limit = 0;            // train on the first so many samples; 0: all
  int64_t width = 0;            // channels of the first layer; 0: 16 on a CPU, 512 on a GPU
};

// Empty after --help, which it has answered. Throws accelerant::Error for what it cannot accept.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace demo
