#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"
#include "cli/commands.h"
#include "cli/memory/estimate.h"
#include "cli/options.h"
#include "cli/weights/text.h"
#include "core/files.h"
#include "core/texts.h"
#include "format/shard_split.h"

namespace accelerant::cli {
namespace {

using nlohmann::json;

// Types of weights for inference, and of the first table, which is Accelerate's.
struct LoadingType {
  const char* name;
  std::uint64_t bits;
  std::uint64_t training_quarters;  // of the float32 size, times four; 0: cannot be trained
};

constexpr std::array<LoadingType, 4> kLoadingTypes = {
    {{"float32", 32, 16}, {"float16", 16, 8}, {"int8", 8, 0}, {"int4", 4, 0}}};

constexpr std::uint64_t kLongestDefault = 2048;  // tokens, where a model allows more
constexpr std::uint64_t kLargestCount = std::uint64_t{1} << 31;

struct EstimateOptions {
  std::string path = {};
  TrainingPlan plan = {};
  std::vector<std::string> dtypes = {};      // of kLoadingTypes
  std::vector<std::string> precisions = {};  // of number_types()
};

struct Estimates {
  ModelSize model = {};
  TrainingPlan plan = {};
  std::vector<LoadingType> loading = {};
  std::vector<NumberTypes> types = {};
};

// "1.25 GiB". Memory is sold in powers of 1024.
std::string memory_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (amount /= 1024; amount >= 1023.995 && unit + 1 < kUnits.size(); ++unit) amount /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %s", amount, kUnits[unit]);
  return text;
}

std::string memory_text(const std::optional<std::uint64_t>& bytes) {
  return bytes ? memory_text(*bytes) : "unknown";
}

std::uint64_t float_bytes(const ModelSize& model) {
  return 4 * (model.parameters + model.buffers) + model.other_bytes;
}

std::optional<std::uint64_t> training_with_adam(const ModelSize& model, const LoadingType& type) {
  if (type.training_quarters == 0) return std::nullopt;
  return float_bytes(model) * type.training_quarters / 4;
}

// --- For people ----------------------------------------------------------------------------------

std::string layer_names(const ModelSize& model) {
  constexpr std::size_t kMost = 2;
  std::vector<std::string> names;
  for (const std::string& name : model.largest_layers) names.push_back(printable(name));
  return list_text(names, kMost);
}

void print_model(const Estimates& estimates, const std::string& path) {
  const ModelSize& model = estimates.model;
  std::string line = printable(path) + ": ";
  if (model.config) {
    line += model.config->type + ", " + plural(model.config->layers, "layer") + ", ";
  }
  line += plural(model.parameters, "parameter");
  if (model.buffers > 0) line += ", " + plural(model.buffers, "element") + " of buffers";
  std::puts(line.c_str());
  std::printf("Largest layer: %s\n", layer_names(model).c_str());
}

void print_loading(const Estimates& estimates) {
  std::puts("\nLoading");
  Table table("lrrr");
  table.add({"TYPE", "LARGEST LAYER", "TOTAL SIZE", "TRAINING WITH ADAM"});
  for (const LoadingType& type : estimates.loading) {
    const auto training = training_with_adam(estimates.model, type);
    table.add({type.name, memory_text(4 * estimates.model.largest_layer * type.bits / 32),
               memory_text(float_bytes(estimates.model) * type.bits / 32),
               training ? memory_text(*training) : "N/A"});
  }
  table.print("  ");
}

// Rows of names and amounts, one column for each combination of types.
class Columns {
 public:
  explicit Columns(const std::vector<NumberTypes>& types)
      : table_("l" + std::string(types.size(), 'r')) {
    std::vector<std::string> titles = {""};
    for (const NumberTypes& one : types) titles.push_back(one.name);
    table_.add(titles);
  }

  // `amount_of(column)`; a row of zeros is left out.
  template <class AmountOf>
  void add(const std::string& name, std::size_t columns, const AmountOf& amount_of) {
    std::vector<std::string> row = {name};
    bool is_nothing = true;
    for (std::size_t i = 0; i < columns; ++i) {
      const std::optional<std::uint64_t> amount = amount_of(i);
      is_nothing = is_nothing && amount == 0U;
      row.push_back(memory_text(amount));
    }
    if (!is_nothing) table_.add(row);
  }

  void print() const { table_.print("  "); }

 private:
  Table table_;
};

std::string plan_text(const TrainingPlan& plan, bool has_activations) {
  std::string text = plan.optimizer;
  if (has_activations) {
    text +=
        ", " + plural(plan.batch_size, "sequence") + " of " + plural(plan.sequence_length, "token");
  }
  if (plan.activation_checkpointing) text += ", activation checkpointing";
  if (plan.num_processes > 1) {
    text += ", one of " + count_text(plan.num_processes) + " processes";
    if (plan.sharding_stage > 0) text += ", sharding stage " + std::to_string(plan.sharding_stage);
  }
  return text;
}

void print_training(const Estimates& estimates) {
  std::vector<TrainingMemory> all;
  for (const NumberTypes& types : estimates.types) {
    all.push_back(training_memory(estimates.model, types, estimates.plan));
  }
  std::printf("\nTraining: %s\n",
              plan_text(estimates.plan, estimates.model.config.has_value()).c_str());
  Columns columns(estimates.types);
  const auto add = [&](const std::string& name, auto TrainingMemory::*amount) {
    columns.add(name, all.size(),
                [&](std::size_t i) { return std::optional<std::uint64_t>(all[i].*amount); });
  };
  add("parameters", &TrainingMemory::parameters);
  add("gradients", &TrainingMemory::gradients);
  add("optimizer", &TrainingMemory::optimizer);
  add("16-bit copies of weights", &TrainingMemory::autocast_copies);
  add("activations", &TrainingMemory::activations);
  add("loss", &TrainingMemory::loss);
  add("exchange buffers", &TrainingMemory::exchange);
  add("peak", &TrainingMemory::peak);
  add("host memory", &TrainingMemory::host);
  columns.print();
}

void print_inference(const Estimates& estimates) {
  std::vector<InferenceMemory> all;
  for (const NumberTypes& types : estimates.types) {
    all.push_back(inference_memory(estimates.model, types, estimates.plan));
  }
  std::puts("\nInference");
  Columns columns(estimates.types);
  const auto add = [&](const std::string& name, auto InferenceMemory::*amount) {
    columns.add(name, all.size(),
                [&](std::size_t i) { return std::optional<std::uint64_t>(all[i].*amount); });
  };
  add("parameters", &InferenceMemory::parameters);
  add("16-bit copies of weights", &InferenceMemory::autocast_copies);
  add("activations", &InferenceMemory::activations);
  add("peak", &InferenceMemory::peak);
  columns.print();
}

void print_estimates(const Estimates& estimates, const std::string& path) {
  print_model(estimates, path);
  print_loading(estimates);
  print_training(estimates);
  print_inference(estimates);
  if (estimates.model.config) return;
  std::printf("\nActivations are unknown, and missing in the sums: %s.\n",
              estimates.model.config_problem.c_str());
}

// --- For programs --------------------------------------------------------------------------------

json or_null(const std::optional<std::uint64_t>& amount) { return amount ? json(*amount) : json(); }

json to_json(const TrainingMemory& memory) {
  return {{"parameters", memory.parameters},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"autocast_copies", memory.autocast_copies},
          {"activations", or_null(memory.activations)},
          {"loss", or_null(memory.loss)},
          {"exchange", memory.exchange},
          {"peak", memory.peak},
          {"host", memory.host}};
}

json to_json(const InferenceMemory& memory) {
  return {{"parameters", memory.parameters},
          {"autocast_copies", memory.autocast_copies},
          {"activations", or_null(memory.activations)},
          {"peak", memory.peak}};
}

json to_json(const TrainingPlan& plan) {
  return {{"batch_size", plan.batch_size},
          {"sequence_length", plan.sequence_length},
          {"optimizer", plan.optimizer},
          {"activation_checkpointing", plan.activation_checkpointing},
          {"accumulates", plan.accumulates},
          {"master_weights", plan.has_master_weights},
          {"gradient_as_bucket_view", plan.gradient_as_bucket_view},
          {"num_processes", plan.num_processes},
          {"sharding_stage", plan.sharding_stage},
          {"offload",
           {{"parameters", plan.offloads_parameters},
            {"optimizer", plan.offloads_optimizer},
            {"activations", plan.offloads_activations},
            {"budget", or_null(plan.offload_budget)}}}};
}

json to_json(const Estimates& estimates) {
  const ModelSize& model = estimates.model;
  json shown = {
      {"model",
       {{"source", model.source},
        {"type", model.config ? json(model.config->type) : json()},
        {"parameters", model.parameters},
        {"buffers", model.buffers},
        {"other_bytes", model.other_bytes},
        {"largest_layer", {{"names", model.largest_layers}, {"elements", model.largest_layer}}}}},
      {"plan", to_json(estimates.plan)},
      {"loading", json::object()},
      {"training", json::object()},
      {"inference", json::object()}};
  if (!model.config_problem.empty()) shown["model"]["problem"] = model.config_problem;
  for (const LoadingType& type : estimates.loading) {
    shown["loading"][type.name] = {
        {"largest_layer", 4 * model.largest_layer * type.bits / 32},
        {"total", float_bytes(model) * type.bits / 32},
        {"training_with_adam", or_null(training_with_adam(model, type))}};
  }
  for (const NumberTypes& types : estimates.types) {
    shown["training"][types.name] = to_json(training_memory(model, types, estimates.plan));
    shown["inference"][types.name] = to_json(inference_memory(model, types, estimates.plan));
  }
  return shown;
}

// --- Options -------------------------------------------------------------------------------------

std::vector<std::string> names_of_loading_types() {
  std::vector<std::string> names;
  for (const LoadingType& type : kLoadingTypes) names.emplace_back(type.name);
  return names;
}

std::vector<std::string> names_of_number_types() {
  std::vector<std::string> names;
  for (const NumberTypes& types : number_types()) names.push_back(types.name);
  return names;
}

CLI::Validator count_from_one() {
  return CLI::Validator(
      [](const std::string& given) -> std::string {
        const bool is_number = !given.empty() && given.size() <= 10 &&
                               given.find_first_not_of("0123456789") == std::string::npos;
        const std::uint64_t value = is_number ? std::stoull(given) : 0;
        if (value >= 1 && value <= kLargestCount) return "";
        return "expected a whole number from 1 to 2147483648, got '" + given + "'";
      },
      "");
}

// An option with words from a list, separated by commas.
void add_words(CLI::App& app, const std::string& name, std::vector<std::string>& words,
               const std::vector<std::string>& known, const std::string& help) {
  app.add_option_function<std::string>(
         both_spellings(name),
         [&words, known, name](const std::string& given) {
           words.clear();
           std::size_t begin = 0;
           while (begin <= given.size()) {
             const std::size_t end = std::min(given.find(',', begin), given.size());
             const std::string word = given.substr(begin, end - begin);
             if (std::ranges::find(known, word) == known.end()) {
               throw UsageError{name + ": expected words of " + list_text(known) +
                                ", separated by commas, got '" + given + "'"};
             }
             words.push_back(word);
             begin = end + 1;
           }
         },
         help)
      ->option_text("LIST");
}

void require_possible(const EstimateOptions& options) {
  const TrainingPlan& plan = options.plan;
  if (plan.offloads_activations && !plan.activation_checkpointing) {
    throw UsageError{
        "--offload activations moves what --activation-checkpointing keeps; give both, or none"};
  }
  if (plan.offload_budget && !plan.offloads_parameters) {
    throw UsageError{"--offload-budget is for --offload parameters; give both, or none"};
  }
  if (plan.sharding_stage > 0 && plan.num_processes == 1) {
    throw UsageError{"--sharding-stage divides among processes; say how many by --num-processes"};
  }
  if (plan.offloads_parameters && plan.sharding_stage < 3 && plan.num_processes > 1) {
    throw UsageError{
        "--offload parameters with several processes needs --sharding-stage 3; without it "
        "every process keeps all parameters on its device"};
  }
}

// Beyond this, numbers of bytes overflow; no machine comes near.
void require_countable(const ModelSize& model, const TrainingPlan& plan) {
  constexpr double kMost = 1e17;
  double numbers = static_cast<double>(model.parameters + model.buffers);
  if (model.config) {
    const double width = static_cast<double>(
        std::max({model.config->width, model.config->inner_width, model.config->vocabulary,
                  model.config->heads * model.config->head_width,
                  model.config->key_heads * model.config->head_width}));
    numbers += 32 * width * static_cast<double>(model.config->layers) *
               static_cast<double>(plan.batch_size) * static_cast<double>(plan.sequence_length);
  }
  if (numbers < kMost) return;
  throw UsageError{
      "this takes more memory than any machine has; check --batch-size, "
      "--sequence-length and config.json"};
}

int estimate_work(EstimateOptions& options, bool as_json) {
  require_possible(options);
  if (!path_exists(options.path)) {
    throw UsageError{options.path +
                     " does not exist; this command reads files: download a model of the Hugging "
                     "Face Hub first"};
  }
  Estimates estimates{.model = measure_model(options.path), .plan = options.plan};
  if (estimates.plan.sequence_length == 0) {
    const auto& config = estimates.model.config;
    estimates.plan.sequence_length =
        config ? std::min(config->positions, kLongestDefault) : kLongestDefault;
  }
  require_countable(estimates.model, estimates.plan);
  for (const LoadingType& type : kLoadingTypes) {
    if (std::ranges::find(options.dtypes, type.name) != options.dtypes.end()) {
      estimates.loading.push_back(type);
    }
  }
  for (const NumberTypes& types : number_types()) {
    if (std::ranges::find(options.precisions, types.name) != options.precisions.end()) {
      estimates.types.push_back(types);
    }
  }
  if (as_json) {
    std::puts(to_json(estimates).dump(2, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    print_estimates(estimates, options.path);
  }
  return 0;
}

}  // namespace

int estimate_memory_command(int argc, char** argv) {
  const auto app = make_parser("estimate-memory", "[OPTIONS] PATH",
                               "Estimates how much memory it takes to load a model, to train it "
                               "and to use it.");
  EstimateOptions options{.dtypes = names_of_loading_types(),
                          .precisions = names_of_number_types()};
  TrainingPlan& plan = options.plan;
  bool as_json = false;
  std::vector<std::string> offload;
  std::uint64_t accumulation_steps = 1;
  app->add_option("path", options.path,
                  "A model folder, its config.json, a file of weights, or the index of a sharded "
                  "model. Activations need a config.json")
      ->required();
  add_words(*app, "--dtypes", options.dtypes, names_of_loading_types(),
            "Types for loading: of float32, float16, int8 and int4. Default: all");
  add_words(*app, "--precision", options.precisions, names_of_number_types(),
            "For training and inference: of fp32, fp16 and bf16, which compute under autocast, and "
            "bf16-weights. Default: all");
  app->add_option(both_spellings("--batch-size"), plan.batch_size,
                  "Sequences that a process computes at once. Default: 1")
      ->check(count_from_one())
      ->option_text("N");
  app->add_option(both_spellings("--sequence-length"), plan.sequence_length,
                  "Tokens in a sequence. Default: the model's longest, at most 2048")
      ->check(count_from_one())
      ->option_text("N");
  std::string known = list_text(known_optimizers());
  app->add_option("--optimizer", plan.optimizer, "One of " + known + ". Default: adamw")
      ->check(one_of(known_optimizers()))
      ->option_text("NAME");
  app->add_option(both_spellings("--gradient-accumulation-steps"), accumulation_steps,
                  "Batches for one step of the optimizer. Default: 1")
      ->check(count_from_one())
      ->option_text("N");
  app->add_flag(both_spellings("--activation-checkpointing"), plan.activation_checkpointing,
                "Recompute blocks in backward instead of keeping their activations");
  bool no_masters = false;
  app->add_flag(both_spellings("--no-master-weights"), no_masters,
                "bf16-weights: without a float32 copy, and with optimizer states of 16 bits");
  app->add_option(both_spellings("--num-processes"), plan.num_processes,
                  "Processes, each with a device. Amounts are for one of them. Default: 1")
      ->check(count_from_one())
      ->option_text("N");
  app->add_option(both_spellings("--sharding-stage"), plan.sharding_stage,
                  "Divide among the processes the optimizer (1), gradients too (2), parameters too "
                  "(3). Default: 0, nothing")
      ->check(one_of({"0", "1", "2", "3"}))
      ->option_text("N");
  app->add_flag(both_spellings("--gradient-as-bucket-view"), plan.gradient_as_bucket_view,
                "Data parallelism without a copy of the gradients");
  add_words(*app, "--offload", offload, {"parameters", "optimizer", "activations"},
            "What to keep in host memory: of parameters, optimizer and activations");
  app->add_option_function<std::string>(
         both_spellings("--offload-budget"),
         [&plan](const std::string& given) {
           try {
             plan.offload_budget = format::parse_byte_size(given);
           } catch (const Error&) {
             throw UsageError{"--offload-budget: expected a size such as 4GiB, got '" + given +
                              "'"};
           }
         },
         "Memory of the device for offloaded parameters, as offload.budget. Default: three layers")
      ->option_text("SIZE");
  app->add_flag("--json", as_json, "Print JSON, with amounts in bytes");
  app->footer(
      "Amounts are in powers of 1024. Exit codes: 0 estimated, 1 the model cannot be read, "
      "2 wrong usage.");
  if (const auto exit_code = parse(*app, argc, argv)) return *exit_code;
  const auto offloads = [&](const char* what) {
    return std::ranges::find(offload, what) != offload.end();
  };
  plan.offloads_parameters = offloads("parameters");
  plan.offloads_optimizer = offloads("optimizer");
  plan.offloads_activations = offloads("activations");
  plan.accumulates = accumulation_steps > 1;
  plan.has_master_weights = !no_masters;
  return estimate_work(options, as_json);
}

}  // namespace accelerant::cli
