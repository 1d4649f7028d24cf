// What somebody may have meant who wrote an option that does not exist.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accelerant::cli {

// Of the names (without hyphens in front) the one nearest to `written`: an unfinished name, or one
// with few letters added, left out, replaced or swapped. None if nothing is near.
std::optional<std::string> nearest_name(std::string_view written,
                                        const std::vector<std::string>& names);

}  // namespace accelerant::cli
