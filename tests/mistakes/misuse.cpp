// Misuse of the library that does not compile; compiler_test.py lists the words that the compiler
// must use for each function.
#include <accelerant/accelerator/accelerator.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

using accelerant::Accelerator;
using accelerant::AcceleratorOptions;
using accelerant::Precision;

struct Net : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return x; }
};

struct Opaque {
  at::Tensor hidden;
};

struct OpaqueNet : torch::nn::Module {
  Opaque forward(const at::Tensor& x) { return {x}; }
};

void prepares_a_number(Accelerator& accelerator, Net& net) { accelerator.prepare(net, 42); }

void prepares_a_temporary(Accelerator& accelerator, Net& net) {
  accelerator.prepare(net, torch::optim::SGD(net.parameters(), 0.1));
}

void hides_tensors_in_an_output(Accelerator& accelerator, OpaqueNet& net) {
  accelerator.prepare(net)(at::Tensor());
}

void accumulates_over_the_original(Accelerator& accelerator, Net& net) {
  const auto window = accelerator.accumulate(net);
}

void uses_an_arrow(Accelerator& accelerator, Net& net) {
  accelerator.prepare(net)->forward(at::Tensor());
}

void dereferences_a_loader(const accelerant::Loader<at::Tensor>& loader) {
  for (auto& batch : *loader) {
  }
}

void keeps_the_graph(Accelerator& accelerator, const at::Tensor& loss) {
  accelerator.backward(loss, true);
}

void misspells_an_option() {
  Accelerator accelerator(AcceleratorOptions{.mixed_precison = Precision::bf16});
}

void uses_an_option_of_python() { Accelerator accelerator({.gradient_accumulation_steps = 4}); }

void orders_options_differently() {
  Accelerator accelerator(AcceleratorOptions{.mixed_precision = Precision::bf16, .cpu = true});
}

void does_not_name_the_window(Accelerator& accelerator) { accelerator.accumulate(); }
