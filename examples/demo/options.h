// The demo's command line.
#pragma once

#include <accelerant/accelerator/options.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace demo {

struct Options {
  std::optional<accelerant::Precision> precision = {};  // default: what the machine is fast in
  std::string device = "auto";                          // auto, cpu or cuda
  int64_t epochs = 0;        // passes over the training set; 0: 1 on a CPU, 5 on a GPU
  int64_t batch_size = 128;  // pictures per update, of all processes together; at least 1
  int64_t width = 1024;      // units in each hidden layer, at least 1
  int64_t limit = 0;         // train on the first so many pictures; 0: all of them
  int64_t seed = 1;          // at least 0
  std::string data;          // the folder with Fashion-MNIST's files

  // Set only when the demo starts itself to run one of its trainings.
  std::string train = {};    // "plain" or "accelerant"; empty: the whole demo
  std::string project = {};  // folder for checkpoints and for the final weights; empty: neither
};

// Thrown for a command line that is not understood: one line that says why.
struct UsageError {
  std::string message;
};

// Empty after --help, which it has answered.
std::optional<Options> parse_options(int argc, const char* const* argv);

// The arguments that parse_options() turns into these options again.
std::vector<std::string> arguments_for(const Options& options);

// As the command line has them: fp32, bf16 or fp16.
std::string short_name(accelerant::Precision precision);
// As people say it: float32, bfloat16 or float16.
std::string full_name(accelerant::Precision precision);

}  // namespace demo
