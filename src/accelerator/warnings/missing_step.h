// Notices a training without steps.
#pragma once

namespace accelerant::detail {

struct Core;

// A backward begins.
void look_for_missing_step(Core& core);

}  // namespace accelerant::detail
