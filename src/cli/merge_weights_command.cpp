#include "cli/commands.h"
#include "cli/options.h"
#include "cli/weights/model_output.h"
#include "cli/weights/text.h"

namespace accelerant::cli {

int merge_weights_command(int argc, char** argv) {
  const auto app = make_parser("merge-weights", "[OPTIONS] INPUT OUTPUT",
                               "Makes one safetensors file of a model in several files.");
  std::string input;
  std::string output;
  app->add_option("input", input, "The folder of the model, or its index")->required();
  app->add_option("output", output,
                  "A folder, for model.safetensors in it, or a path that ends in .safetensors")
      ->required();
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return exit_code_of(*app, error);
  }
  return run_work("merge-weights", [&] {
    require_path(input);
    const checkpoint::WeightFiles model = checkpoint::open_model(input);
    const bool is_file = output.ends_with(".safetensors");
    const WrittenModel written =
        is_file ? write_single_file(model, output) : write_model(model, input, output, {});
    show_written("merge-weights", written, output);
    return 0;
  });
}

}  // namespace accelerant::cli
