#include "options.h"

#include <accelerant/core/error.h>
#include <accelerant/watch/environment.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <map>

#include "common/fashion_mnist.h"

namespace demo {
namespace {

// The message of a usage error, on one line.
std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  options.data = examples::fashion_mnist_folder;
  std::string precision = name_of(options.precision);
  const std::map<std::string, Precision> precisions = {
      {"fp16", Precision::fp16}, {"bf16", Precision::bf16}, {"fp32", Precision::fp32}};
  const auto number_in = [](int64_t least, int64_t most) {
    return CLI::Range(least, most).description("");  // the help is clearer without it
  };
  constexpr int64_t many = 1'000'000'000;

  CLI::App app(
      "Trains a small convolutional network on Fashion-MNIST in mixed precision and compares\n"
      "its speed with float32.",
      "accelerant-demo");
  app.add_option("--precision", precision, "Number format of the matrix products")
      ->check(CLI::IsMember({"fp16", "bf16", "fp32"}))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the training set")
      ->check(number_in(1, many))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--data", options.data, "Folder of Fashion-MNIST's four .gz files")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size,
                 "Samples per step; default 256 on a CPU, 1024 on a GPU")
      ->check(number_in(1, many))
      ->type_name("N");
  app.add_option("--device", options.device, "auto takes the GPU where there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Same seed, same result on the same machine")
      ->check(number_in(0, std::numeric_limits<int64_t>::max()))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--limit", options.limit, "Train on the first N samples only")
      ->check(number_in(1, many))
      ->type_name("N");
  app.add_option("--width", options.width,
                 "Channels of the first layer; default 16 on a CPU, 512 on a GPU")
      ->check(number_in(1, 4096))
      ->type_name("N");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    if (accelerant::dist::Environment::detect().is_main_process()) app.exit(help);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw accelerant::Error(one_line(error.what()) + "; see --help");
  }
  options.precision = precisions.at(precision);
  return options;
}

}  // namespace demo
