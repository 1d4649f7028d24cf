// Nodes of the autograd graph, which are held by another kind of pointer since 2.13.
#pragma once

#include <torch/csrc/autograd/function.h>

#include "compat/torch_version.h"

namespace accelerant::compat {

template <class Node>
auto make_node() {
#if ACCELERANT_TORCH_AT_LEAST(2, 13)
  return c10::make_intrusive<Node>();
#else
  return std::shared_ptr<Node>(new Node(), torch::autograd::deleteNode);
#endif
}

}  // namespace accelerant::compat
