// The programs beside `accelerant` that do what needs libtorch.
#pragma once

#include <optional>
#include <string>

namespace accelerant::cli {

// The file of a helper: in the folder of this program, or in ../libexec/accelerant. None if it is
// in neither.
std::optional<std::string> find_helper(const std::string& name);

}  // namespace accelerant::cli
