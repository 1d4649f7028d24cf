// Run by python_folder_test.py. Continues a training in C++ that Python began.
//
//   python-folder FOLDER DATA RESULT no|fp16
//
// FOLDER was written by Accelerate's save_state; DATA holds `inputs` and `targets`, one batch per
// row. The result is saved as RESULT.safetensors (losses, rates, parameters, outputs for the first
// batch) and as a checkpoint, RESULT.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>

namespace {

// No bias before the normalization: its gradient would be mere rounding errors, which AdamW makes
// large.
torch::nn::Sequential network() {
  return torch::nn::Sequential(torch::nn::Linear(torch::nn::LinearOptions(6, 12).bias(false)),
                               torch::nn::BatchNorm1d(12), torch::nn::Dropout(0.25),
                               torch::nn::ReLU(), torch::nn::Linear(12, 1));
}

void go_on(const std::string& folder, const std::string& data, const std::string& result,
           bool half) {
  using accelerant::Precision;
  accelerant::Accelerator accelerator(
      {.cpu = true, .mixed_precision = half ? Precision::fp16 : Precision::no});
  auto net = network();
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.5));
  accelerant::optim::LrScheduler decay(adamw,
                                       accelerant::optim::StepDecay{.step_size = 3, .gamma = 0.5});
  auto [model, optimizer, scheduler] = accelerator.prepare(net, adamw, decay);
  accelerator.load_state(folder);

  const accelerant::StateDict batches = accelerant::load_tensors(data);
  const at::Tensor inputs = batches["inputs"];
  const at::Tensor targets = batches["targets"];
  std::vector<double> losses;
  std::vector<double> rates;
  for (int64_t i = 0; i < inputs.size(0); ++i) {
    const at::Tensor loss = torch::mse_loss(model(inputs[i]), targets[i]);
    accelerator.backward(loss);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    losses.push_back(loss.item<double>());
    rates.push_back(decay.get_last_lr().at(0));
  }
  accelerator.save_state(result);

  accelerant::StateDict found;
  for (const auto& item : net->named_parameters()) found.insert(item.key(), item.value().detach());
  for (const auto& item : net->named_buffers()) found.insert(item.key(), item.value());
  found.insert("losses", torch::tensor(losses, torch::kDouble));
  found.insert("rates", torch::tensor(rates, torch::kDouble));
  found.insert("scale", torch::tensor(half ? accelerator.scaler().get_scale() : 1.0));
  const torch::NoGradGuard no_grad;
  net->eval();
  found.insert("outputs", net->forward(inputs[0]));
  accelerator.save(found, result + ".safetensors");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: python-folder FOLDER DATA RESULT no|fp16\n", stderr);
    return 2;
  }
  go_on(argv[1], argv[2], argv[3], std::string(argv[4]) == "fp16");
}
