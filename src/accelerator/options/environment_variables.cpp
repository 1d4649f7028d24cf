#include "accelerator/options/environment_variables.h"

#include <c10/util/StringUtil.h>

#include <cstdlib>

#include "accelerant/core/error.h"
#include "core/texts.h"

namespace accelerant::detail {

std::optional<std::string> environment_variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<bool> flag_from_environment(const char* name) {
  const auto value = environment_variable(name);
  if (!value) return std::nullopt;
  if (const auto flag = parse_flag(*value)) return *flag;
  refuse_variable(name, *value, "true or false");
}

void refuse_variable(const char* name, const std::string& value, const std::string& expected) {
  throw Error(
      ErrorDetails{.problem = c10::str("The environment variable ", name, " cannot be used"),
                   .expected = expected,
                   .got = "'" + value + "'",
                   .hint = "change it, or set the option in the program"});
}

}  // namespace accelerant::detail
