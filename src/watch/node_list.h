// Lists in the variables of Slurm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accelerant::dist {

// "node[08-10,7],gpu3" is node08, node09, node10, node7, gpu3. Several brackets in a name are
// combined, the last one varying fastest. Throws Error if the text is not such a list.
std::vector<std::string> expand_node_list(std::string_view list);

// The tasks of each node: "2(x3),1" is 2, 2, 2, 1.
std::vector<int64_t> expand_task_counts(std::string_view list);

}  // namespace accelerant::dist
