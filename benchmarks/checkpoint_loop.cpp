// Saves a whole training: how long save_state blocks the training, and how much slower the training
// runs in the meantime.
//
//   bench-checkpoint       reads requests and answers each with a line of JSON
//
//   save WAY SIZE FOLDER   saves once. "blocked": seconds until save_state returned; "complete":
//                          seconds until the save was on disk
//   train WAY SIZE FOLDER STEPS EVERY
//                          trains STEPS steps, with a save before every EVERY of them. "trained":
//                          seconds until the last step was done; "complete": seconds until the
//                          last save was done, too
//
// The ways are none, sync and async. The sizes count weights and AdamW's state together: 100MB and
// 1GB. checkpoint_loop.py has the same trainings with Python's own ways, and
// workloads/checkpoint.py queries both in turn.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

torch::nn::Sequential make_network(int64_t layers, int64_t width) {
  torch::nn::Sequential network;
  for (int64_t i = 0; i < layers; ++i) {
    if (i > 0) network->push_back(torch::nn::ReLU());
    network->push_back(torch::nn::Linear(width, width));
  }
  return network;
}

class Training {
 public:
  Training(int64_t layers, int64_t width)
      : network_(make_network(layers, width)),
        adamw_(std::make_shared<torch::optim::AdamW>(network_->parameters(),
                                                     torch::optim::AdamWOptions(1e-4))),
        prepared_(accelerator_.prepare(network_, adamw_)) {
    const auto options = at::TensorOptions().device(accelerator_.device());
    data_ = at::randn({kBatch, width}, options);
    target_ = at::randn({kBatch, width}, options);
    step();  // the optimizer creates its state
  }

  void step() {
    auto& [model, optimizer] = prepared_;
    accelerator_.backward(at::mse_loss(model(data_), target_));
    optimizer.step();
    optimizer.zero_grad();
  }

  void save(const std::string& way, const std::string& folder) {
    if (way == "none") return;
    if (way != "sync" && way != "async") throw std::invalid_argument("no such way: " + way);
    accelerator_.save_state(folder, {.async = way == "async"});
  }

  void wait() { accelerator_.wait_for_saves(); }

  void synchronize() const {
    if (accelerator_.device().is_cuda()) torch::cuda::synchronize();
  }

 private:
  static constexpr int64_t kBatch = 64;
  using Prepared = decltype(std::declval<accelerant::Accelerator&>().prepare(
      std::declval<torch::nn::Sequential&>(),
      std::declval<std::shared_ptr<torch::optim::AdamW>&>()));

  accelerant::Accelerator accelerator_;
  torch::nn::Sequential network_;
  std::shared_ptr<torch::optim::AdamW> adamw_;
  Prepared prepared_;
  at::Tensor data_, target_;
};

class Requests {
 public:
  std::string answer(const std::string& request) {
    std::istringstream words(request);
    std::string what, way, size, folder;
    int64_t steps = 0, every = 0;
    if (!(words >> what >> way >> size >> folder)) {
      throw std::invalid_argument("unknown request: " + request);
    }
    Training& training = training_of(size);
    std::string text;
    if (what == "save") {
      text = save(training, way, folder);
    } else if (what == "train" && words >> steps >> every) {
      text = train(training, way, folder, steps, every);
    } else {
      throw std::invalid_argument("unknown request: " + request);
    }
    if (std::system(("rm -rf '" + folder + "'").c_str()) != 0) {
      throw std::runtime_error(folder + " cannot be removed");
    }
    return text;
  }

 private:
  // Keeps one training at a time, to save memory.
  Training& training_of(const std::string& size) {
    if (size != size_) {
      training_.reset();
      torch::manual_seed(0);
      if (size == "100MB") {
        training_.emplace(8, 1024);
      } else if (size == "1GB") {
        training_.emplace(20, 2048);
      } else {
        throw std::invalid_argument("no such size: " + size);
      }
      size_ = size;
    }
    return *training_;
  }

  static std::string save(Training& training, const std::string& way, const std::string& folder) {
    training.synchronize();
    const auto start = Clock::now();
    training.save(way, folder);
    const double blocked = since(start);
    training.wait();
    return pair("blocked", blocked, since(start));
  }

  static std::string train(Training& training, const std::string& way, const std::string& folder,
                           int64_t steps, int64_t every) {
    training.step();
    training.synchronize();
    const auto start = Clock::now();
    for (int64_t step = 0; step < steps; ++step) {
      if (step % every == 0) training.save(way, folder);
      training.step();
    }
    training.synchronize();
    const double trained = since(start);
    training.wait();
    return pair("trained", trained, since(start));
  }

  static std::string pair(const char* name, double value, double complete) {
    std::ostringstream text;
    text << "{\"" << name << "\": " << value << ", \"complete\": " << complete << "}";
    return text.str();
  }

  std::string size_;
  std::optional<Training> training_;
};

}  // namespace

int main() {
  try {
    Requests requests;
    for (std::string request; std::getline(std::cin, request);) {
      std::cout << requests.answer(request) << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "bench-checkpoint: " << error.what() << "\n";
    return 2;
  }
}
