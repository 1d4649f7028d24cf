// The program that traces_test.py runs:
//   profiled-training train FOLDER   trains a little and profiles it, with kernels, into the folder
//   profiled-training schedules      reads [{"skip_first": 1, "wait": 2, ...}, ...] and writes what
//                                    40 steps of each do
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

namespace {

void train(const std::string& folder) {
  accelerant::Accelerator accelerator({.cpu = true});
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const at::Tensor inputs = at::arange(160, at::kFloat).view({40, 4}).sin();
  const auto batches = accelerant::data::loader(
      accelerant::data::tensors(inputs, inputs.sum(1, true)), {.batch_size = 5, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, batches);
  auto profile =
      accelerator.profile({.output_trace_dir = folder + "/traces", .with_kernels = true});
  for ([[maybe_unused]] const auto epoch : accelerator.epochs(2)) {
    for (auto&& [data, target] : loader) {
      accelerator.backward(torch::mse_loss(model(data), target));
      optimizer.step();
      optimizer.zero_grad();
      accelerator.timeline().counter("memory \"used\"", 1.5);
      accelerator.timeline().instant("a moment");
      profile.step();
    }
    accelerator.save_state(folder + "/checkpoint", {.async = true});
  }
  accelerator.gather(torch::ones({1}));
  accelerator.wait_for_saves();
}

void show_schedules() {
  static const char* const names[] = {"NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"};
  nlohmann::json answers = nlohmann::json::array();
  for (const auto& given : nlohmann::json::parse(std::cin)) {
    const accelerant::ProfileSchedule schedule{.skip_first = given.at("skip_first"),
                                               .wait = given.at("wait"),
                                               .warmup = given.at("warmup"),
                                               .active = given.at("active"),
                                               .repeat = given.at("repeat")};
    nlohmann::json actions = nlohmann::json::array();
    for (int64_t step = 0; step < 40; ++step) {
      actions.push_back(names[static_cast<int>(accelerant::action_at(schedule, step))]);
    }
    answers.push_back(actions);
  }
  std::cout << answers << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  try {
    if (mode == "schedules") {
      show_schedules();
    } else if (mode == "train" && argc == 3) {
      train(argv[2]);
    } else {
      std::cerr << "usage: profiled-training train FOLDER | schedules\n";
      return 2;
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "profiled-training: " << error.what() << "\n";
    return 1;
  }
}
