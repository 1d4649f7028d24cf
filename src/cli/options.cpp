#include "cli/options.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <sstream>
#include <string_view>
#include <utility>

#include "cli/foreign_options.h"
#include "cli/help_text.h"
#include "cli/suggestion.h"
#include "core/texts.h"

namespace accelerant::cli {
namespace {

// "path" is PATH in help and messages.
std::string argument_name(const CLI::Option& option) {
  std::string name = option.get_name(true);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  return name;
}

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::string usage) : usage_(std::move(usage)) {}

  std::string usage_line(const CLI::App& app) const { return app.get_name() + " " + usage_; }

  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const override {
    const std::size_t width = help_width();
    std::string text = "Usage: " + usage_line(*app) + "\n\n";
    text += wrapped(app->get_description(), width) + "\n";
    const auto arguments =
        app->get_options([](const CLI::Option* o) { return o->get_positional(); });
    text += section("Arguments", arguments, width);
    std::vector<std::string> groups = app->get_groups();
    // Options of no group last: they are the same in all commands.
    std::ranges::stable_partition(groups, [](const auto& group) { return group != "Options"; });
    for (const std::string& group : groups) {
      const auto options = app->get_options([&](const CLI::Option* option) {
        return option->nonpositional() && option->get_group() == group;
      });
      text += section(group, options, width);
    }
    if (!app->get_footer().empty()) text += "\n" + wrapped(app->get_footer(), width) + "\n";
    return text;
  }

 private:
  static std::string section(const std::string& title,
                             const std::vector<const CLI::Option*>& options, std::size_t width) {
    if (options.empty()) return "";
    std::vector<std::pair<std::string, std::string>> rows;
    for (const CLI::Option* option : options) {
      rows.emplace_back(option->get_positional() ? argument_name(*option) : option_names(*option),
                        option->get_description());
    }
    return "\n" + title + ":\n" + definition_list(rows, width);
  }

  // "-h, --help" or "--num-processes N", without the spelling with underscores.
  static std::string option_names(const CLI::Option& option) {
    std::istringstream all(option.get_name(false, true));
    std::string shown;
    for (std::string name; std::getline(all, name, ',');) {
      if (name.find('_') == std::string::npos) shown += (shown.empty() ? "" : ", ") + name;
    }
    const std::string& value = option.get_option_text();
    return value.empty() ? shown : shown + " " + value;
  }

  std::string usage_;
};

std::string try_help(const CLI::App& app) { return "\nTry '" + app.get_name() + " --help'."; }

// "--num-procs=2" without hyphens and value, with hyphens for underscores.
std::string bare_name(const std::string& written) {
  const std::string name = written.substr(0, written.find('='));
  std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  std::ranges::replace(bare, '_', '-');
  return bare;
}

std::optional<std::string> nearest_option(const CLI::App& app, const std::string& bare) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name.find('_') == std::string::npos) names.push_back(name);
    }
  }
  return nearest_name(bare, names);
}

std::optional<UsageError> problem_with_extras(const CLI::App& app) {
  std::vector<std::string> extras = app.remaining();
  // From its name on, the arguments are those of the program to launch.
  const bool begins_with_option =
      !extras.empty() && extras.front().starts_with('-') && extras.front() != "--";
  if (app.get_prefix_command() && !begins_with_option) extras.clear();
  const auto option = std::ranges::find_if(
      extras, [](const std::string& extra) { return extra.size() > 1 && extra.starts_with('-'); });
  if (option != extras.end()) return unknown_option(app, *option);
  if (extras.empty()) return std::nullopt;
  return UsageError{"unexpected argument '" + extras.front() + "'" + try_help(app)};
}

std::vector<std::string> missing_in(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_required() && option->count() == 0) names.push_back(argument_name(*option));
  }
  return names;
}

// The option that the parser's own message is about; null if it names none.
const CLI::Option* option_named_in(const CLI::App& app, const std::string& message) {
  const std::size_t begin = message.find("--");
  if (begin == std::string::npos) return nullptr;
  const std::size_t end = message.find_first_of(" :,=", begin);
  return app.get_option_no_throw(message.substr(begin, end - begin));
}

std::string name_of_option(const CLI::Option& option) {
  return "--" + bare_name(option.get_name());
}

UsageError problem_with_value(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::Option* option = option_named_in(app, error.what());
  if (option == nullptr) return {error.what() + try_help(app)};
  const std::string name = name_of_option(*option);
  if (option->get_expected_max() == 0) return {name + " takes no value" + try_help(app)};
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ArgumentMismatch)) {
    return {name + " needs a value: " + name + " " + option->get_option_text() + try_help(app)};
  }
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ConversionError)) {
    return {error.what() + try_help(app)};
  }
  const std::string expected = option->get_type_name() == "FLOAT" ? "a number" : "a whole number";
  const std::string got = option->results().empty() ? "" : option->results().back();
  return {name + ": expected " + expected + ", got '" + got + "'" + try_help(app)};
}

}  // namespace

std::string both_spellings(const std::string& name) {
  std::string other = name;
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return other == name ? name : name + "," + other;
}

std::unique_ptr<CLI::App> make_parser(const std::string& name, const std::string& usage,
                                      const std::string& description) {
  auto app = std::make_unique<CLI::App>(description, "accelerant " + name);
  app->formatter(std::make_shared<HelpFormatter>(usage));
  app->set_help_flag("-h,--help", "Show this text");
  app->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  return app;
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& error) {
    // An option that does not exist is more likely the cause than an argument that is missing.
    if (const auto problem = problem_with_extras(app)) throw *problem;
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError)) {
      throw missing_arguments(app, missing_in(app));
    }
    throw problem_with_value(app, error);
  }
}

UsageError unknown_option(const CLI::App& app, const std::string& written) {
  const std::string bare = bare_name(written);
  std::string message = "unknown option '" + written.substr(0, written.find('=')) + "'";
  // Only commands that start processes have the counterparts of the options of other launchers.
  const bool starts_processes = app.get_option_no_throw("--num-processes") != nullptr;
  const auto advice = starts_processes ? advice_on_foreign_option(bare) : std::nullopt;
  if (advice) {
    message += "; " + *advice;
  } else if (const auto nearest = nearest_option(app, bare)) {
    message += "; did you mean --" + *nearest + "?";
  }
  return {message + try_help(app)};
}

UsageError missing_arguments(const CLI::App& app, const std::vector<std::string>& names) {
  const auto& formatter = dynamic_cast<const HelpFormatter&>(*app.get_formatter());
  std::string missing;
  for (const std::string& name : names) missing += (missing.empty() ? "" : " and ") + name;
  return {"missing " + missing + "; usage: " + formatter.usage_line(app) + try_help(app)};
}

void add_allow_expanded(CLI::App& app, bool& allow) {
  app.add_flag(
      both_spellings("--allow-expanded"), allow,
      "Accept tensors of torch.save that repeat elements, and may be far larger than their "
      "file. Default: refuse them");
}

void add_no_checksums(CLI::App& app, bool& no_checksums) {
  app.add_flag(both_spellings("--no-checksums"), no_checksums,
               "Neither compare the input with its model.checksums.json nor write one. Default: do "
               "both");
}

CLI::Validator one_of(const std::vector<std::string>& values) {
  return CLI::Validator(
      [values](const std::string& given) -> std::string {
        if (std::ranges::find(values, given) != values.end()) return "";
        std::string expected = list_text(values);
        if (const auto last = expected.rfind(", "); last != std::string::npos) {
          expected.replace(last, 2, " or ");
        }
        return "expected " + expected + ", got '" + given + "'";
      },
      "");
}

}  // namespace accelerant::cli
