// Options of torchrun and of Accelerate's launcher that are called something else here, or are
// not needed.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace accelerant::cli {

// What to write instead of such an option, to be read behind "unknown option '--nnodes'; ". `name`
// is without hyphens in front; '_' and '-' are the same. None for options that neither has.
std::optional<std::string> advice_on_foreign_option(std::string_view name);

}  // namespace accelerant::cli
