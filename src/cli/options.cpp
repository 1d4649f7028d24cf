#include "cli/options.h"

#include <algorithm>
#include <sstream>
#include <utility>

namespace accelerant::cli {
namespace {

constexpr size_t kTextWidth = 64;

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

}  // namespace accelerant::cli
