// Notices processes that may all train with the same samples, because no prepared loader divides
// them.
#pragma once

namespace accelerant::detail {

struct Core;

// A backward begins.
void look_for_undivided_data(Core& core);

}  // namespace accelerant::detail
