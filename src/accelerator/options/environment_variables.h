// Options from the environment.
#pragma once

#include <optional>
#include <string>

namespace accelerant::detail {

// A variable that is set to nothing counts as not set.
std::optional<std::string> environment_variable(const char* name);

// true or false, in any of the usual words; an Error for others.
std::optional<bool> flag_from_environment(const char* name);

[[noreturn]] void refuse_variable(const char* name, const std::string& value,
                                  const std::string& expected);

}  // namespace accelerant::detail
