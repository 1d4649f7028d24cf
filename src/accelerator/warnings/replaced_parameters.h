// Notices a layer that was replaced after the optimizer was made: the optimizer steps parameters
// that no model uses any more.
#pragma once

namespace torch::optim {
class Optimizer;
}

namespace accelerant::detail {

struct Core;

// A prepared optimizer takes its first step.
void warn_if_replaced(Core& core, torch::optim::Optimizer& optimizer);

}  // namespace accelerant::detail
