// One backward over models whose gradients are exchanged between processes.
#pragma once

#include <functional>

#include "accelerator/core.h"

namespace accelerant::detail {

// Runs the backward of the loss and checks that every model that took part prepared an exchange of
// its gradients if it was to. Throws Error if one did not: its copies would drift apart unnoticed.
void run_exchanging(Core& core, const at::Tensor& loss, bool create_graph,
                    const std::function<void()>& backward);

}  // namespace accelerant::detail
