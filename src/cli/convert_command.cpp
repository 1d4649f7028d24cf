#include <map>

#include "accelerant/core/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/weights/model_output.h"
#include "cli/weights/text.h"
#include "format/shard_split.h"

namespace accelerant::cli {
namespace {

std::uint64_t byte_size_option(const std::string& text) {
  try {
    return format::parse_byte_size(text);
  } catch (const Error& error) {
    throw UsageError{std::string("--max-shard-size: ") + error.what()};
  }
}

}  // namespace

int convert_command(int argc, char** argv) {
  const auto app = make_parser("convert", "[OPTIONS] INPUT OUTPUT",
                               "Writes a model with another data type, format or shard size.");
  const std::map<std::string, format::DType> types = {
      {"f32", format::DType::f32}, {"f16", format::DType::f16}, {"bf16", format::DType::bf16}};
  std::string input;
  std::string output;
  std::string dtype;
  std::string max_shard_size = "5GB";
  std::string format = "safetensors";
  app->add_option("input", input,
                  "A file of weights, the index of a sharded model, or a model folder")
      ->required();
  app->add_option("output", output, "The folder for the new model; created if missing")->required();
  app->add_option("--dtype", dtype,
                  "Data type of all floating-point tensors: f32, f16 or bf16. Default: unchanged")
      ->check(one_of({"f32", "f16", "bf16"}))
      ->option_text("TYPE");
  app->add_option(both_spellings("--max-shard-size"), max_shard_size,
                  "Largest size of a file, such as 500MB or 5GiB. Default: 5GB")
      ->option_text("SIZE");
  app->add_option("--format", format,
                  "safetensors, or bin for the format of torch.save. Default: safetensors")
      ->check(one_of({"safetensors", "bin"}))
      ->option_text("FORMAT");
  bool allow_expanded = false;
  add_allow_expanded(*app, allow_expanded);
  bool no_checksums = false;
  add_no_checksums(*app, no_checksums);
  if (const auto exit_code = parse(*app, argc, argv)) return *exit_code;
  OutputOptions options{.max_shard_bytes = byte_size_option(max_shard_size),
                        .safetensors = format == "safetensors",
                        .allow_expanded = allow_expanded,
                        .checksums = !no_checksums};
  if (!dtype.empty()) options.dtype = types.at(dtype);
  require_path(input);
  const checkpoint::WeightFiles model = open_input(input, options);
  show_written(write_model(model, input, output, options), output);
  return 0;
}

}  // namespace accelerant::cli
