// A whole training step: with the Accelerator, and in plain libtorch with all of it written by hand.
//
//   bench-training                     reads requests and answers each with a line of JSON
//   bench-training first-step SIDE     trains one step of the CNN, says so, and ends
//
// A request is a line `SIDE TASK PRECISION CHUNK SECONDS`: side accelerant or libtorch, task empty,
// cnn or gpt, precision no, bf16 or fp16. Steps are timed in chunks of so many, with one wait for the
// device at the end of each, for at least so long; the answer is the median. training_loop.py
// answers the same requests, and training.py asks both in turn.
#include <accelerant/accelerant.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "training_by_hand.h"
#include "training_tasks.h"

namespace {

using accelerant::Precision;

constexpr double kMaxNorm = 1.0;
constexpr int64_t kScheduleSteps = 1'000'000;
constexpr int64_t kBatchesPerEpoch = 128;

at::Device best_device() {
  return torch::cuda::is_available() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

void synchronize() {
  if (best_device().is_cuda()) torch::cuda::synchronize();
}

// Counts steps and times them in chunks; the first chunk is to warm up.
class Watch {
 public:
  Watch(int64_t chunk, double seconds) : chunk_(chunk), seconds_(seconds) {}

  // To be asked after every step.
  bool has_enough() {
    if (++steps_ % chunk_ != 0) return false;
    synchronize();
    const auto now = Clock::now();
    if (steps_ > chunk_) laps_.push_back(std::chrono::duration<double>(now - start_).count());
    if (laps_.empty()) first_ = now;
    start_ = now;
    return laps_.size() >= 3 && std::chrono::duration<double>(now - first_).count() >= seconds_;
  }

  double seconds_per_step() {
    std::sort(laps_.begin(), laps_.end());
    return laps_[laps_.size() / 2] / static_cast<double>(chunk_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  int64_t chunk_;
  double seconds_;
  int64_t steps_ = 0;
  Clock::time_point first_ = {}, start_ = {};
  std::vector<double> laps_ = {};
};

// For start-up: one step is enough.
struct OneStep {
  static bool has_enough() {
    synchronize();
    return true;
  }
};

template <class Network>
int64_t parameter_count(Network& network) {
  int64_t count = 0;
  for (const at::Tensor& parameter : network->parameters()) count += parameter.numel();
  return count;
}

// Both train until the watch has enough, and return the number of parameters.

template <class Task, class Stop>
int64_t train_with_accelerant(const Task& task, Precision precision, int64_t batches, Stop& watch) {
  accelerant::Accelerator accelerator({.mixed_precision = precision});
  auto network = task.make_network();
  auto torch_optimizer = task.make_optimizer(network->parameters());
  auto cosine = accelerant::optim::cosine_annealing(*torch_optimizer, {.t_max = kScheduleSteps});
  auto [model, optimizer, scheduler] = accelerator.prepare(network, torch_optimizer, cosine);

  const auto step = [&, &model = model, &optimizer = optimizer, &scheduler = scheduler](
                        const at::Tensor& data, const at::Tensor& target) {
    auto window = accelerator.accumulate(model);
    accelerator.backward(task.loss(model(data), target));
    accelerator.clip_grad_norm_(model, kMaxNorm);
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
  };

  const auto [data, target] = task.make_data(batches);
  if (batches == 0) {
    const at::Tensor one = data.to(accelerator.device()), zero = target.to(accelerator.device());
    do step(one, zero);
    while (!watch.has_enough());
    return parameter_count(network);
  }
  auto loader = accelerator.prepare(
      accelerant::data::loader(accelerant::data::tensors(data, target),
                               {.batch_size = task.batch, .shuffle = true, .drop_last = true}));
  while (true) {
    for (auto&& [some_data, some_target] : loader) {
      step(some_data, some_target);
      if (watch.has_enough()) return parameter_count(network);
    }
  }
}

template <class Task, class Stop>
int64_t train_by_hand(const Task& task, Precision precision, int64_t batches, Stop& watch) {
  const at::Device device = best_device();
  auto network = task.make_network();
  network->to(device);
  const auto parameters = network->parameters();
  const auto optimizer = task.make_optimizer(parameters);
  CosineByHand cosine(*optimizer, kScheduleSteps);
  std::optional<at::ScalarType> autocast_type;
  if (precision != Precision::no) {
    autocast_type = precision == Precision::fp16 ? at::kHalf : at::kBFloat16;
  }
  std::optional<ScalerByHand> scaler;
  if (precision == Precision::fp16) scaler.emplace(device);

  const auto step = [&](const at::Tensor& data, const at::Tensor& target) {
    at::Tensor output;
    {
      const AutocastByHand autocast(device.type(), autocast_type);
      output = network(data);
    }
    const at::Tensor loss = task.loss(output.to(at::kFloat), target);
    bool stepped = true;
    if (scaler) {
      scaler->scale(loss).backward();
      scaler->unscale(parameters);
    } else {
      loss.backward();
    }
    torch::nn::utils::clip_grad_norm_(parameters, kMaxNorm);
    if (scaler) {
      stepped = scaler->step(*optimizer);
    } else {
      optimizer->step();
    }
    if (stepped) cosine.step();
    optimizer->zero_grad();
  };

  const auto [data, target] = task.make_data(batches);
  if (batches == 0) {
    const at::Tensor one = data.to(device), zero = target.to(device);
    do step(one, zero);
    while (!watch.has_enough());
    return parameter_count(network);
  }
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      RowsByHand(data, target).map(torch::data::transforms::Stack<>()),
      torch::data::DataLoaderOptions(static_cast<std::size_t>(task.batch)).drop_last(true));
  while (true) {
    for (auto& example : *loader) {
      step(example.data.to(device), example.target.to(device));
      if (watch.has_enough()) return parameter_count(network);
    }
  }
}

template <class Task, class Stop>
int64_t train(const std::string& side, const Task& task, Precision precision, int64_t batches,
              Stop& watch) {
  torch::manual_seed(0);
  if (side == "accelerant") return train_with_accelerant(task, precision, batches, watch);
  if (side == "libtorch") return train_by_hand(task, precision, batches, watch);
  throw std::invalid_argument("no such side: " + side);
}

Precision precision_named(const std::string& name) {
  if (name == "no") return Precision::no;
  if (name == "bf16") return Precision::bf16;
  if (name == "fp16") return Precision::fp16;
  throw std::invalid_argument("no such precision: " + name);
}

std::string answer(const std::string& request) {
  std::string side, task, precision_name;
  int64_t chunk = 0;
  double seconds = 0.0;
  std::istringstream words(request);
  if (!(words >> side >> task >> precision_name >> chunk >> seconds) || chunk < 1) {
    throw std::invalid_argument("no request: " + request);
  }
  const Precision precision = precision_named(precision_name);
  const bool large = best_device().is_cuda();
  Watch watch(chunk, seconds);
  int64_t parameters = 0;
  if (task == "empty") {
    parameters = train(side, EmptyTask(large), precision, 0, watch);
  } else if (task == "cnn") {
    parameters = train(side, CnnTask(large), precision, kBatchesPerEpoch, watch);
  } else if (task == "gpt") {
    parameters = train(side, GptTask(large), precision, kBatchesPerEpoch, watch);
  } else {
    throw std::invalid_argument("no such task: " + task);
  }
  std::ostringstream text;
  text << "{\"seconds\": " << watch.seconds_per_step() << ", \"parameters\": " << parameters << "}";
  return text.str();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string(argv[1]) == "first-step") {
      OneStep one_step;
      train(argv[2], CnnTask(best_device().is_cuda()), Precision::no, 1, one_step);
      std::cout << "stepped" << std::endl;
      return 0;
    }
    if (argc != 1) throw std::invalid_argument("usage: bench-training [first-step SIDE]");
    for (std::string request; std::getline(std::cin, request);) {
      std::cout << answer(request) << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "bench-training: " << error.what() << "\n";
    return 2;
  }
}
