#include "cli/commands.h"
#include "cli/options.h"
#include "cli/weights/model_output.h"
#include "cli/weights/text.h"

namespace accelerant::cli {

int merge_weights_command(int argc, char** argv) {
  const auto app = make_parser("merge-weights", "[OPTIONS] INPUT OUTPUT",
                               "Merges the files of a sharded model into one safetensors file.");
  std::string input;
  std::string output;
  app->add_option("input", input, "The model folder, or the index in it")->required();
  app->add_option("output", output,
                  "A path ending in .safetensors, or a folder, which gets model.safetensors")
      ->required();
  OutputOptions options;
  add_allow_expanded(*app, options.allow_expanded);
  bool no_checksums = false;
  add_no_checksums(*app, no_checksums);
  if (const auto exit_code = parse(*app, argc, argv)) return *exit_code;
  require_path(input);
  options.checksums = !no_checksums;
  const checkpoint::WeightFiles model = open_input(input, options);
  const bool is_file = output.ends_with(".safetensors");
  const WrittenModel written = is_file ? write_single_file(model, output, options)
                                       : write_model(model, input, output, options);
  show_written(written, output);
  return 0;
}

}  // namespace accelerant::cli
