// Training with the optimizer's state in host memory, under a limit to the device's memory that the
// state would not fit into.
//
//   bench-offload             reads requests and answers each with a line of JSON
//
//   prepare FORM SIZE LIMIT   creates a training of bfloat16 weights with float32 copies, and takes
//                             its first steps; returns the number of parameters and the losses.
//                             LIMIT: of the device's memory, in GB; 0: none. A process has one
//                             training at a time
//   measure SECONDS           seconds per step
//   memory                    the most device memory that the allocator holds during steps, in bytes
//   bound SECONDS             what a step of the prepared training cannot be faster than: the longest
//                             of forward and backward alone ("compute"), the gradients out and the
//                             weights back at the same time ("transfer"), and the update in host
//                             memory alone ("update")
//
// The forms are resident (nothing is offloaded), offloaded, early (updates begin in backward) and
// deep (offloaded, with the inputs of checkpoints); a "clipped-" before them clips gradients. The
// sizes are tiny and 1b (1.3 billion parameters).
#include <ATen/DeviceAccelerator.h>
#include <accelerant/accelerant.h>
#include <accelerant/nn/activation_checkpoint.h>
#include <accelerant/optim/fused_step.h>
#include <accelerant/paging/empty_weights.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "stopwatch.h"
#include "training_tasks.h"

#if defined(ACCELERANT_WITH_CUDA)
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace {

constexpr int kFirstLosses = 4, kWarmUpSteps = 3;

at::Device best_device() {
  return torch::cuda::is_available() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

void synchronize() {
  if (best_device().is_cuda()) torch::cuda::synchronize();
}

void limit_memory([[maybe_unused]] double gigabytes) {
#if defined(ACCELERANT_WITH_CUDA)
  if (!best_device().is_cuda()) return;
  std::size_t available = 0, all = 0;
  cudaMemGetInfo(&available, &all);
  const double fraction = gigabytes > 0 ? gigabytes * 1e9 / static_cast<double>(all) : 1.0;
  c10::cuda::CUDACachingAllocator::setMemoryFraction(std::min(fraction, 1.0), 0);
#endif
}

struct Size {
  int64_t layers, width, heads, vocabulary, context, batch;
};

Size size_named(const std::string& name) {
  if (name == "tiny") return {2, 64, 2, 512, 32, 4};
  if (name == "1b") return {24, 2048, 16, 50257, 1024, 8};
  throw std::invalid_argument("no such size: " + name);
}

// A GPT whose blocks are checkpoints.
struct DeepGptImpl : GptImpl<accelerant::nn::Linear> {
  using GptImpl::GptImpl;
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = tokens(ids) + positions(at::arange(ids.size(1), ids.options()));
    for (auto& block : blocks) {
      x = accelerant::nn::checkpoint({.preserve_rng_state = false}, block, x);
    }
    return at::linear(norm(x), tokens->weight);
  }
};
TORCH_MODULE(DeepGpt);

DeepGpt network_of(const Size& size) {
  torch::manual_seed(0);
  const auto there =
      accelerant::init_on_device(best_device());  // where random numbers take no time
  DeepGpt network(size.layers, size.width, size.heads, size.vocabulary, size.context);
  network->to(at::kBFloat16);
  return network;
}

accelerant::AcceleratorOptions options_of(const std::string& form) {
  accelerant::AcceleratorOptions options{.device = best_device(), .master_weights = true};
  options.offload.optimizer = form != "resident";
  options.offload.update_in_backward = form == "early";
  options.offload.activations = form == "deep";
  if (form != "resident" && form != "offloaded" && form != "early" && form != "deep") {
    throw std::invalid_argument("no such form: " + form);
  }
  return options;
}

class Training {
 public:
  Training(const std::string& form, const Size& size, bool clips)
      : clips_(clips), accelerator_(options_of(form)), network_(network_of(size)) {
    adamw_ = std::make_shared<torch::optim::AdamW>(network_->parameters(),
                                                   torch::optim::AdamWOptions(1e-4));
    model_ = accelerator_.prepare_model(network_, {.float32_outputs = false});
    optimizer_ = accelerator_.prepare(adamw_);
    torch::manual_seed(1);
    ids_ = at::randint(size.vocabulary, {size.batch, size.context + 1}, at::kLong)
               .to(accelerator_.device());
  }

  at::Tensor forward_and_backward() {
    const at::Tensor logits = model_(ids_.slice(1, 0, -1).contiguous());
    const at::Tensor loss =
        accelerant::nn::functional::cross_entropy(logits.flatten(0, 1), ids_.slice(1, 1).flatten());
    accelerator_.backward(loss);
    return loss.detach();
  }

  at::Tensor step() {
    const at::Tensor loss = forward_and_backward();
    if (clips_) accelerator_.clip_grad_norm_(model_, 1.0);
    optimizer_.step();
    optimizer_.zero_grad();
    return loss;
  }

  // Forward and backward without moving anything.
  void compute() {
    const at::Tensor logits = network_->forward(ids_.slice(1, 0, -1).contiguous());
    accelerant::nn::functional::cross_entropy(logits.flatten(0, 1), ids_.slice(1, 1).flatten())
        .backward();
    for (at::Tensor& parameter : network_->parameters()) parameter.mutable_grad().reset();
  }

  std::vector<at::Tensor> parameters() const { return network_->parameters(); }

 private:
  bool clips_;
  accelerant::Accelerator accelerator_;
  DeepGpt network_;
  std::shared_ptr<torch::optim::AdamW> adamw_;
  accelerant::Model<DeepGpt> model_;
  accelerant::Optimizer optimizer_;
  at::Tensor ids_;
};

// The gradients out and the weights back at the same time, all in pinned memory.
double seconds_of_transfer(const std::vector<at::Tensor>& parameters, double seconds) {
  if (!best_device().is_cuda()) return 0;
  int64_t bytes = 0;
  for (const at::Tensor& parameter : parameters) {
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  // In pieces, since the limit leaves no room for as much again.
  const int64_t piece = std::min<int64_t>(bytes, 256 << 20);
  const auto on_host = at::TensorOptions().dtype(at::kByte).pinned_memory(true);
  const auto on_device = at::TensorOptions().dtype(at::kByte).device(best_device());
  const at::Tensor out = at::empty({piece}, on_host), back = at::empty({piece}, on_host);
  const at::Tensor from = at::empty({piece}, on_device), to = at::empty({piece}, on_device);
  const c10::impl::VirtualGuardImpl device(at::kCUDA);
  const c10::Stream side = device.getStreamFromGlobalPool(best_device());
  const double one = seconds_per_step(
      seconds,
      [&] {
        {
          const c10::StreamGuard guard(side);
          out.copy_(from, /*non_blocking=*/true);
        }
        to.copy_(back, /*non_blocking=*/true);
      },
      synchronize);
  return one * static_cast<double>(bytes) / static_cast<double>(piece);
}

double seconds_of_update(const std::vector<at::Tensor>& parameters, double seconds) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& parameter : parameters) {
    copies.push_back(parameter.detach().cpu().requires_grad_());
    copies.back().mutable_grad() = at::ones_like(copies.back()).mul_(1e-3);
  }
  torch::optim::AdamW adamw(copies, torch::optim::AdamWOptions(1e-4));
  accelerant::FusedStep fused(adamw, {.master_weights = true});
  return seconds_per_step(
      seconds, [&] { fused.step(); }, [] {});
}

class Requests {
 public:
  std::string answer(const std::string& request) {
    std::istringstream words(request);
    std::string what, form, size;
    double limit = 0, seconds = 0;
    words >> what;
    if (what == "prepare" && words >> form >> size >> limit) return prepare(form, size, limit);
    if (!training_) throw std::invalid_argument("nothing is prepared");
    if (what == "measure" && words >> seconds) {
      return "{\"seconds\": " +
             text_of(seconds_per_step(
                 seconds, [&] { training_->step(); }, synchronize)) +
             "}";
    }
    if (what == "memory") return "{\"bytes\": " + std::to_string(peak_bytes()) + "}";
    if (what == "bound" && words >> seconds) return bound(seconds);
    throw std::invalid_argument("unknown request: " + request);
  }

 private:
  static std::string text_of(double value) {
    std::ostringstream text;
    text.precision(9);
    text << value;
    return text.str();
  }

  std::string prepare(std::string form, const std::string& size, double limit) {
    training_.reset();
    const bool clips = form.starts_with("clipped-");
    if (clips) form = form.substr(std::string("clipped-").size());
    if (best_device().is_cuda()) {
      at::globalContext().lazyInitDevice(at::kCUDA);  // makes the allocator
      at::getDeviceAllocator(at::kCUDA)->emptyCache();
    }
    limit_memory(limit);
    training_.emplace(form, size_named(size), clips);
    std::string losses;
    for (int i = 0; i < kFirstLosses; ++i) {
      losses += (i > 0 ? ", " : "") + text_of(training_->step().to(at::kFloat).item<double>());
    }
    for (int i = 0; i < kWarmUpSteps; ++i) training_->step();
    synchronize();
    int64_t parameters = 0;
    for (const at::Tensor& parameter : training_->parameters()) parameters += parameter.numel();
    return "{\"parameters\": " + std::to_string(parameters) + ", \"losses\": [" + losses + "]}";
  }

  std::string bound(double seconds) {
    const double compute = seconds_per_step(
        seconds, [&] { training_->compute(); }, synchronize);
    const double transfer = seconds_of_transfer(training_->parameters(), seconds);
    const double update = seconds_of_update(training_->parameters(), seconds);
    return "{\"seconds\": " + text_of(std::max({compute, transfer, update})) +
           ", \"compute\": " + text_of(compute) + ", \"transfer\": " + text_of(transfer) +
           ", \"update\": " + text_of(update) + "}";
  }

  int64_t peak_bytes() {
    if (!best_device().is_cuda()) throw std::invalid_argument("memory is counted on GPUs only");
    auto* allocator = at::getDeviceAllocator(at::kCUDA);
    allocator->emptyCache();
    allocator->resetPeakStats(0);
    for (int i = 0; i < 3; ++i) training_->step();
    synchronize();
    return allocator->getDeviceStats(0).reserved_bytes.at(0).peak;
  }

  std::optional<Training> training_;
};

}  // namespace

int main(int argc, char**) {
  try {
    if (argc != 1) throw std::invalid_argument("usage: bench-offload");
    Requests requests;
    for (std::string request; std::getline(std::cin, request);) {
      std::cout << requests.answer(request) << std::endl;
    }
  } catch (const std::exception& error) {
    std::cerr << "bench-offload: " << error.what() << "\n";
    return 2;
  }
}
