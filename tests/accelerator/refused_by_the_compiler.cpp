// Misuse of the Accelerator that must not compile, one case at a time; CMakeLists.txt has the text
// that the compiler is to show for each.
#include <accelerant/accelerator/accelerator.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

struct Net : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return x; }
};

struct Opaque {
  at::Tensor hidden;
};

struct OpaqueNet : torch::nn::Module {
  Opaque forward(const at::Tensor& x) { return {x}; }
};

void misuse(accelerant::Accelerator& accelerator) {
  Net net;
  OpaqueNet opaque_net;
#if CASE == 1
  accelerator.prepare(net, 42);
#elif CASE == 2
  accelerator.prepare(net, torch::optim::SGD(net.parameters(), 0.1));
#elif CASE == 3
  accelerator.prepare(opaque_net)(at::Tensor());
#elif CASE == 4
  const auto window = accelerator.accumulate(net);
#elif CASE == 5
  accelerator.prepare(net)->forward(at::Tensor());
#endif
}
