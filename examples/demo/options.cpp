#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <map>

#include "common/fashion_mnist.h"

namespace demo {
namespace {

using accelerant::Precision;

const std::map<std::string, Precision>& precisions() {
  static const std::map<std::string, Precision> all = {
      {"fp32", Precision::no}, {"bf16", Precision::bf16}, {"fp16", Precision::fp16}};
  return all;
}

std::string on_one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv) {
  Options options;
  options.data = examples::fashion_mnist_folder;
  std::string precision = "auto";
  const auto number_in = [](int64_t least, int64_t most) {
    return CLI::Range(least, most).description("");  // the help is clearer without it
  };
  constexpr int64_t many = 1'000'000'000;

  CLI::App app(
      "Trains a small network on Fashion-MNIST with plain libtorch and with Accelerant, then on\n"
      "two processes, one of which it kills on the way. Ends with a table.",
      "accelerant-demo");
  app.add_option("--precision", precision,
                 "Number format of matrix products; auto: the one this machine is fast in")
      ->check(CLI::IsMember({"auto", "fp32", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_option("--device", options.device, "auto: the GPU if there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the training set in each run")
      ->check(number_in(1, many))
      ->type_name("N")
      ->default_str("1, on a GPU 5");
  app.add_option("--batch-size", options.batch_size, "Pictures per update")
      ->check(number_in(2, many))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--width", options.width, "Units in each hidden layer")
      ->check(number_in(1, 65536))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--limit", options.limit, "Train on the first N pictures only")
      ->check(number_in(1, many))
      ->type_name("N");
  app.add_option("--seed", options.seed, "Start of the random numbers")
      ->check(number_in(0, std::numeric_limits<int64_t>::max()))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--data", options.data, "Folder with Fashion-MNIST's four .gz files")
      ->type_name("DIR")
      ->capture_default_str();
  // An empty group hides an option from the help.
  app.add_option("--train", options.train)
      ->check(CLI::IsMember({"plain", "accelerant"}))
      ->group("");
  app.add_option("--project", options.project)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    app.exit(help);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    throw UsageError{on_one_line(error.what()) + "; see --help"};
  }
  if (precision != "auto") options.precision = precisions().at(precision);
  return options;
}

std::vector<std::string> arguments_for(const Options& options) {
  std::vector<std::string> arguments;
  const auto add = [&](const char* name, const std::string& value) {
    arguments.insert(arguments.end(), {name, value});
  };
  if (options.precision) add("--precision", short_name(*options.precision));
  add("--device", options.device);
  add("--epochs", std::to_string(options.epochs));
  add("--batch-size", std::to_string(options.batch_size));
  add("--width", std::to_string(options.width));
  if (options.limit > 0) add("--limit", std::to_string(options.limit));
  add("--seed", std::to_string(options.seed));
  add("--data", options.data);
  if (!options.train.empty()) add("--train", options.train);
  if (!options.project.empty()) add("--project", options.project);
  return arguments;
}

std::string short_name(Precision precision) {
  for (const auto& [name, value] : precisions()) {
    if (value == precision) return name;
  }
  return "?";
}

std::string full_name(Precision precision) {
  switch (precision) {
    case Precision::fp16:
      return "float16";
    case Precision::bf16:
      return "bfloat16";
    case Precision::no:
      break;
  }
  return "float32";
}

}  // namespace demo
