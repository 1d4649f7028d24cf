// What the commands share in reading their options.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

namespace accelerant::cli {

// Both spellings of an option, "--num-processes,--num_processes": Accelerate takes both.
std::string both_spellings(const std::string& name);

// A parser for `accelerant NAME`, whose help shows the spelling with hyphens. `usage` is what
// follows the name.
std::unique_ptr<CLI::App> make_parser(const std::string& name, const std::string& usage,
                                      const std::string& description);

// Prints what `error`, thrown by the parser, has to say: the help, or what is wrong with an option
// and which one may be meant. Returns the exit code of the program: 0 or 2.
int exit_code_of(const CLI::App& app, const CLI::ParseError& error);

// An option that need not be there.
template <class T>
CLI::Option* add_optional(CLI::App& app, const std::string& name, std::optional<T>& value,
                          const std::string& help) {
  return app.add_option_function<T>(
      both_spellings(name), [&value](const T& given) { value = given; }, help);
}

}  // namespace accelerant::cli
