// One backward over models whose gradients are exchanged between processes.
#pragma once

#include <functional>

#include "accelerator/core.h"

namespace accelerant::detail {

// Runs the backward of the loss and checks that every model that took part has prepared the
// exchange of its gradients where it must. Throws Error if one has not: its copies would silently
// drift apart.
void run_exchanging(Core& core, const at::Tensor& loss, bool create_graph,
                    const std::function<void()>& backward);

}  // namespace accelerant::detail
