// What somebody may have meant who wrote a name that does not exist.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerant::cli {

// The name nearest to `written`, which may be unfinished, or have a few letters too many, missing,
// replaced or swapped. None if no name is near. Names of options are without hyphens in front.
std::optional<std::string> nearest_name(std::string_view written,
                                        const std::vector<std::string>& names);

}  // namespace accelerant::cli
