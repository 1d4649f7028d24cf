// Uses Accelerant only through its public headers.
#include <accelerant/accelerant.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

namespace {

// Needs zlib, which the project does not link itself.
bool missing_files_are_refused() try {
  accelerant::load_tensors("no such file");
  return false;
} catch (const accelerant::Error&) {
  return true;
}

}  // namespace

int main() {
  torch::nn::Linear net(4, 1);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  accelerant::GradScaler scaler({.device = at::kCPU, .init_scale = 8.0});
  const at::Tensor loss = accelerant::with_autocast({at::kCPU, at::kBFloat16}, [&] {
    return net->forward(at::ones({2, 4})).sum();
  });
  scaler.scale(loss).backward();
  scaler.unscale_(optimizer);
  accelerant::clip_grad_norm_(net->parameters(), 1.0);
  const bool skipped = scaler.step(optimizer).skipped();
  scaler.update();
  std::printf("accelerant %s: skipped %d, state %s\n", ACCELERANT_VERSION, skipped,
              scaler.state_dict().dump().c_str());
  return !skipped && missing_files_are_refused() ? 0 : 1;
}
