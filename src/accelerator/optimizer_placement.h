// The state of stock optimizers, moved to where the parameters are.
#pragma once

namespace torch::optim {
class Optimizer;
}

namespace accelerant::detail {

// An optimizer that has stepped, or one like Adagrad that makes its state at once, may hold tensors on
// the device its parameters came from. Optimizers other than those of torch::optim are left alone.
void move_state_to_parameters(torch::optim::Optimizer& optimizer);

}  // namespace accelerant::detail
