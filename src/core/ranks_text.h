// The names of ranks in messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace accelerant {

// "rank 3", "ranks 0 and 2", "ranks 0 to 3, 5 and 6". The ranks are sorted, and there is one at least.
std::string ranks_text(const std::vector<int64_t>& ranks);

}  // namespace accelerant
