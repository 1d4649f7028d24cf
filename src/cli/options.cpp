#include "cli/options.h"

#include <algorithm>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/suggestion.h"

namespace accelerant::cli {
namespace {

constexpr size_t kTextWidth = 64;
constexpr int kUsageError = 2;

// The text in lines of at most kTextWidth characters.
std::string wrapped(const std::string& text) {
  std::istringstream words(text);
  std::string result;
  size_t column = 0;
  for (std::string word; words >> word; column += word.size()) {
    if (column > 0 && column + 1 + word.size() > kTextWidth) {
      result += '\n';
      column = 0;
    } else if (column > 0) {
      result += ' ';
      ++column;
    }
    result += word;
  }
  return result;
}

class HyphenFormatter : public CLI::Formatter {
 public:
  explicit HyphenFormatter(std::string usage) : usage_(std::move(usage)) {}

  std::string make_usage(const CLI::App*, std::string name) const override {
    return "Usage: " + name + " " + usage_ + "\n\n";
  }
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::istringstream all(CLI::Formatter::make_option_name(option, is_positional));
    std::string shown;
    for (std::string name; std::getline(all, name, ',');) {
      if (name.find('_') == std::string::npos) shown += (shown.empty() ? "" : ", ") + name;
    }
    return shown;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(CLI::Formatter::make_option_desc(option));
  }

 private:
  std::string usage_;
};

// "--num-procs: did you mean --num-processes?"; empty if no option is near.
std::string suggestion_for(const CLI::App& app) {
  const std::vector<std::string> unknown = app.remaining();
  const auto written = std::ranges::find_if(
      unknown, [](const std::string& argument) { return argument.starts_with('-'); });
  if (written == unknown.end()) return "";
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      if (name.find('_') == std::string::npos) names.push_back(name);
    }
  }
  const std::string given = written->substr(0, written->find('='));
  std::string name = given.substr(std::min(given.find_first_not_of('-'), given.size()));
  std::ranges::replace(name, '_', '-');
  const auto nearest = nearest_name(name, names);
  return nearest ? given + ": did you mean --" + *nearest + "?" : "";
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
  auto formatter = std::make_shared<HyphenFormatter>(usage);
  formatter->column_width(36);
  app->formatter(formatter);
  return app;
}

int exit_code_of(const CLI::App& app, const CLI::ParseError& error) {
  const bool is_unknown = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError);
  const std::string suggestion = is_unknown ? suggestion_for(app) : "";
  if (suggestion.empty()) return app.exit(error) == 0 ? 0 : kUsageError;
  app.exit(CLI::ParseError(error.what() + ("\n" + suggestion), CLI::ExitCodes::ExtrasError));
  return kUsageError;
}

}  // namespace accelerant::cli
