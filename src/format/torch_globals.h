// The list of classes and functions that a pickle of plain data may name.
#pragma once

#include <optional>
#include <string>

#include "format/pickle_graph.h"

namespace accelerant::format {

// What stands for "module.name", under its name in Python 2 or 3; nothing if it is not on the list.
std::optional<Node> find_global(const std::string& module, const std::string& name);

// The same for what only the archives of modules have: classes of their own, and typed lists.
std::optional<Node> find_module_global(const std::string& module, const std::string& name);

// Whether numpy's own pickles of arrays, numbers and types name it.
bool is_of_numpy(const std::string& module, const std::string& name);

}  // namespace accelerant::format
