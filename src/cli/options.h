// What the commands share in reading their options.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/messages.h"

namespace accelerant::cli {

// Both spellings of an option, "--num-processes,--num_processes": Accelerate takes both.
std::string both_spellings(const std::string& name);

// A parser for `accelerant NAME`, whose help shows the spelling with hyphens. `usage` is what
// follows the name. An option that is given twice has its last value.
std::unique_ptr<CLI::App> make_parser(const std::string& name, const std::string& usage,
                                      const std::string& description);

// Reads the arguments of a command. Returns an exit code if nothing is left to do because the help
// was shown. Arguments that cannot be understood are a UsageError.
[[nodiscard]] std::optional<int> parse(CLI::App& app, int argc, char** argv);

// What to say about an option that does not exist, and which one may be meant.
UsageError unknown_option(const CLI::App& app, const std::string& written);

// What to say about an argument of the parser's command that is missing.
UsageError missing_arguments(const CLI::App& app, const std::vector<std::string>& names);

// The flag --allow-expanded of commands that read all elements of tensors.
void add_allow_expanded(CLI::App& app, bool& allow);

// The flag --no-checksums of commands that write models.
void add_no_checksums(CLI::App& app, bool& no_checksums);

// Refuses other values: "--format: expected safetensors or bin, got 'onnx'".
CLI::Validator one_of(const std::vector<std::string>& values);

// An option without a default.
template <class T>
CLI::Option* add_optional(CLI::App& app, const std::string& name, std::optional<T>& value,
                          const std::string& help) {
  return app.add_option_function<T>(
      both_spellings(name), [&value](const T& given) { value = given; }, help);
}

}  // namespace accelerant::cli
