#include "accelerator/environment_variables.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "accelerant/core/error.h"

namespace accelerant::detail {

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<bool> flag_from_environment(const char* name) {
  const auto value = environment_variable(name);
  if (!value) return std::nullopt;
  static constexpr std::array yes = {"y", "yes", "t", "true", "on", "1"};
  static constexpr std::array no = {"n", "no", "f", "false", "off", "0"};
  const std::string text = lower_case(*value);
  if (std::find(yes.begin(), yes.end(), text) != yes.end()) return true;
  if (std::find(no.begin(), no.end(), text) != no.end()) return false;
  refuse_variable(name, *value, "true or false");
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

void refuse_variable(const char* name, const std::string& value, const std::string& expected) {
  throw Error(
      ErrorDetails{.problem = c10::str("The environment variable ", name, " cannot be used"),
                   .expected = expected,
                   .got = "'" + value + "'",
                   .hint = "change it, or set the option in the program"});
}

}  // namespace accelerant::detail
