// A small training run, which launchers_test.py starts with every launcher. It trains a few steps
// and writes its rank and results to FOLDER/RANK.json.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

namespace {

// FNV-1a over the bits of all parameters.
std::string hash_of(const std::vector<at::Tensor>& parameters) {
  uint64_t hash = 14695981039346656037U;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor flat = parameter.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(flat.const_data_ptr());
    for (size_t i = 0; i < flat.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
  }
  return std::to_string(hash);
}

void train(const std::string& folder) {
  accelerant::Accelerator accelerator({.cpu = true});
  // Each rank has different weights; those of rank 0 count.
  torch::manual_seed(1 + static_cast<uint64_t>(accelerator.process_index()));
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const at::Tensor inputs = at::arange(160, at::kFloat).view({40, 4}).sin();
  const auto batches = accelerant::data::loader(
      accelerant::data::tensors(inputs, inputs.sum(1, true)), {.batch_size = 5, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
  for ([[maybe_unused]] const auto epoch : accelerator.epochs(2)) {
    for (auto&& [data, target] : loader) {
      accelerator.backward(torch::mse_loss(model(data), target));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  const auto& environment = accelerator.environment();
  std::ofstream file(folder + "/" + std::to_string(environment.process_index) + ".json");
  file << nlohmann::json{{"rank", environment.process_index},
                         {"ranks", environment.num_processes},
                         {"local_rank", environment.local_process_index},
                         {"local_ranks", environment.local_num_processes},
                         {"agent_store", environment.uses_agent_store},
                         {"run_id", environment.run_id},
                         {"launcher", static_cast<int>(environment.launcher)},
                         {"hash", hash_of(net->parameters())}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: launched-training FOLDER\n";
    return 2;
  }
  try {
    train(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "launched-training: " << error.what() << "\n";
    return 1;
  }
}
