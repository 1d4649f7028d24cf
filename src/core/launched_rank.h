// The rank of this process, for messages and failpoints.
#pragma once

#include <string>

namespace accelerant {

// As the launcher wrote it into its variable; empty where one process runs. Nothing is checked:
// messages must come through whatever the variables are. dist::Environment checks them.
std::string launched_rank();

}  // namespace accelerant
