// The programs beside `accelerant` that do what needs libtorch.
#pragma once

#include <optional>
#include <string>

namespace accelerant::cli {

// The path of a helper: in the folder of this program, or in ../libexec/accelerant. None if it is
// in neither.
std::optional<std::string> find_helper(const std::string& name);

// Why the system cannot load a helper, and what to do about it: "libtorch.so was not found; set
// LD_LIBRARY_PATH=...". None if it finds all libraries. The helper itself does not run.
std::optional<std::string> loading_problem(const std::string& helper);

}  // namespace accelerant::cli
