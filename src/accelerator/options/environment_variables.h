// Options from the environment.
#pragma once

#include <optional>
#include <string>

namespace accelerant::detail {

// An empty variable counts as not set.
std::optional<std::string> environment_variable(const char* name);

// Accepts the usual words for true and false; throws Error for anything else.
std::optional<bool> flag_from_environment(const char* name);

[[noreturn]] void refuse_variable(const char* name, const std::string& value,
                                  const std::string& expected);

}  // namespace accelerant::detail
