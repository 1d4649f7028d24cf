// Forward passes of a model whose weights are elsewhere.
//
//   bench-big-model DEVICE    reads requests and answers each with a line of JSON
//
//   prepare FORM SIZE BUDGET FOLDER
//                       creates a model and places it; BUDGET in MB, FOLDER for files. The forms are
//                       resident (plain libtorch), watched (comes and goes, but everything fits), host,
//                       disk, and copied (from files, copied even on a CPU). A process has one model at
//                       a time
//   forward TOKENS SECONDS
//                       seconds per forward of that many rows or tokens
//   step TOKENS SECONDS seconds per step of gpt2 with plain libtorch: forward, backward and AdamW
//   transfer TOKENS SECONDS
//                       seconds to copy as many bytes from pinned host memory as a forward fetches
//
// The sizes are linear (24 layers of 16 MiB), gpt2 (GPT-2 small, 124 M parameters in float32, on a
// GPU under autocast to bfloat16) and 8b (the shapes of Llama 3 8B, in bfloat16). Weights are random.
#include <accelerant/amp/autocast.h>
#include <accelerant/checkpoint/models.h>
#include <accelerant/nn/layers.h>
#include <accelerant/paging/empty_weights.h>
#include <accelerant/paging/offload.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

#include "stopwatch.h"
#include "training_tasks.h"

namespace {

using accelerant::nn::Linear;
using torch::nn::Embedding;
using torch::nn::EmbeddingOptions;

struct Shape {
  int64_t layers = 24;
  int64_t width = 2048;
  int64_t inner = 0;  // of a Llama's MLP
  int64_t heads = 1;
  int64_t key_heads = 1;
  int64_t words = 0;    // 0: the model is only a chain of linear layers
  int64_t context = 0;  // of a GPT
  c10::ScalarType dtype = torch::kFloat;
};

Shape shape_of(const std::string& size) {
  if (size == "linear") return {};
  if (size == "gpt2") {
    return {.layers = 12, .width = 768, .heads = 12, .words = 50257, .context = 1024};
  }
  if (size == "8b") {
    return {.layers = 32,
            .width = 4096,
            .inner = 14336,
            .heads = 32,
            .key_heads = 8,
            .words = 128256,
            .dtype = torch::kBFloat16};
  }
  throw std::runtime_error("no such size: " + size);
}

Linear plain_linear(int64_t in, int64_t out) {
  return Linear(torch::nn::LinearOptions(in, out).bias(false));
}

struct LlamaBlockImpl : torch::nn::Module {
  explicit LlamaBlockImpl(const Shape& wanted) : shape(wanted) {
    const int64_t key_width = shape.width / shape.heads * shape.key_heads;
    first_norm = register_parameter("first_norm", torch::ones({shape.width}));
    second_norm = register_parameter("second_norm", torch::ones({shape.width}));
    q = register_module("q", plain_linear(shape.width, shape.width));
    k = register_module("k", plain_linear(shape.width, key_width));
    v = register_module("v", plain_linear(shape.width, key_width));
    o = register_module("o", plain_linear(shape.width, shape.width));
    gate = register_module("gate", plain_linear(shape.width, shape.inner));
    up = register_module("up", plain_linear(shape.width, shape.inner));
    down = register_module("down", plain_linear(shape.inner, shape.width));
  }

  at::Tensor normalised(const at::Tensor& x, const at::Tensor& weight) const {
    return torch::rms_norm(x, {shape.width}, weight, 1e-5);
  }

  at::Tensor forward(at::Tensor x) {
    const auto split = [&](const at::Tensor& y, int64_t heads) {
      return y.view({y.size(0), y.size(1), heads, shape.width / shape.heads}).transpose(1, 2);
    };
    const at::Tensor y = normalised(x, first_norm);
    const int64_t repeats = shape.heads / shape.key_heads;
    const at::Tensor keys = split(k(y), shape.key_heads).repeat_interleave(repeats, 1);
    const at::Tensor values = split(v(y), shape.key_heads).repeat_interleave(repeats, 1);
    const at::Tensor mixed = at::scaled_dot_product_attention(split(q(y), shape.heads), keys,
                                                              values, std::nullopt, 0.0, true);
    x = x + o(mixed.transpose(1, 2).reshape(x.sizes()));
    const at::Tensor z = normalised(x, second_norm);
    return x + down(torch::silu(gate(z)) * up(z));
  }

  Shape shape;
  at::Tensor first_norm, second_norm;
  Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr}, gate{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(LlamaBlock);

struct BigModelImpl : torch::nn::Module {
  explicit BigModelImpl(const Shape& wanted) : shape(wanted) {
    if (is_gpt()) {
      gpt = register_module(
          "gpt", Gpt(shape.layers, shape.width, shape.heads, shape.words, shape.context));
      return;
    }
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < shape.layers; ++i) {
      if (is_chain()) {
        layers->push_back(plain_linear(shape.width, shape.width));
      } else {
        layers->push_back(LlamaBlock(shape));
      }
    }
    if (is_chain()) return;
    words = register_module("words", Embedding(EmbeddingOptions(shape.words, shape.width)));
    head = register_module("head", plain_linear(shape.width, shape.words));
  }

  bool is_chain() const { return shape.words == 0; }
  bool is_gpt() const { return shape.context > 0; }

  at::Tensor input(int64_t tokens, at::Device device) const {
    if (is_chain()) return torch::ones({tokens, shape.width}, device);
    const int64_t length = is_gpt() ? std::min(tokens, shape.context) : tokens;
    return torch::zeros({tokens / length, length}, at::TensorOptions(torch::kLong).device(device));
  }

  at::Tensor forward(at::Tensor x) {
    if (is_chain()) {
      for (const auto& layer : *layers) x = layer->as<accelerant::nn::LinearImpl>()->forward(x);
      return x;
    }
    if (is_gpt()) {
      const accelerant::AutocastGuard autocast(
          {.device_type = x.device().type(), .dtype = at::kBFloat16, .enabled = x.is_cuda()});
      return gpt(x);
    }
    x = words(x);
    for (const auto& layer : *layers) x = layer->as<LlamaBlockImpl>()->forward(x);
    return head(x);
  }

  using Gpt = torch::nn::ModuleHolder<GptImpl<Linear>>;

  Shape shape;
  Gpt gpt{nullptr};
  torch::nn::ModuleList layers{nullptr};
  Embedding words{nullptr};
  Linear head{nullptr};
};
TORCH_MODULE(BigModel);

// Small values, quickly: the time of a forward does not depend on them.
void fill(const BigModel& net) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) {
    if (parameter.dim() < 2) continue;
    const double bound = 1 / std::sqrt(static_cast<double>(parameter.size(1)));
    parameter.uniform_(-bound, bound);
  }
}

class Bench {
 public:
  explicit Bench(at::Device device) : device_(device) {}

  std::string prepare(const std::string& form, const std::string& size, int64_t budget,
                      const std::string& folder) {
    net_ = nullptr;
    net_ = accelerant::init_empty_weights([&] { return BigModel(shape_of(size)); });
    net_->to(net_->shape.dtype);
    // On the GPU if there is one, where random numbers take no time.
    accelerant::materialize(net_, device_);
    fill(net_);
    place(form, budget << 20, folder);
    return "{}";
  }

  std::string forward(int64_t tokens, double seconds) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = net_->input(tokens, device_);
    const double one = seconds_per_step(
        seconds, [&] { net_->forward(x); }, [&] { synchronize(); });
    const accelerant::OffloadStatistics statistics = accelerant::offload_statistics(net_);
    std::ostringstream text;
    text << R"({"seconds": )" << one << R"(, "offloaded_bytes": )" << statistics.offloaded_bytes
         << R"(, "peak_bytes": )" << statistics.peak_bytes << "}";
    return text.str();
  }

  std::string step(int64_t tokens, double seconds) {
    const at::Tensor x = net_->input(tokens, device_);
    torch::optim::AdamW adamw(net_->parameters(), torch::optim::AdamWOptions(1e-4));
    const double one = seconds_per_step(
        seconds,
        [&] {
          const at::Tensor logits = net_->forward(x);
          torch::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), x.flatten()).backward();
          adamw.step();
          adamw.zero_grad();
        },
        [&] { synchronize(); });
    return R"({"seconds": )" + std::to_string(one) + "}";
  }

  std::string transfer(int64_t tokens, double seconds) {
    const int64_t bytes = fetched_by_forward(tokens);
    const int64_t piece = std::min<int64_t>(bytes, int64_t{1} << 30);
    const auto host =
        at::empty({piece}, at::TensorOptions(torch::kByte).pinned_memory(device_.is_cuda()));
    const auto there = at::empty({piece}, at::TensorOptions(torch::kByte).device(device_));
    const double one = seconds_per_step(
        seconds, [&] { there.copy_(host, /*non_blocking=*/true); }, [&] { synchronize(); });
    return R"({"seconds": )" +
           std::to_string(one * static_cast<double>(bytes) / static_cast<double>(piece)) +
           R"(, "bytes": )" + std::to_string(bytes) + "}";
  }

 private:
  // Less than what is offloaded: some of it is still there from the forward before.
  int64_t fetched_by_forward(int64_t tokens) {
    const at::NoGradGuard no_grad;
    const at::Tensor x = net_->input(tokens, device_);
    for (int i = 0; i < 4; ++i) net_->forward(x);
    const uint64_t before = accelerant::offload_statistics(net_).fetched_bytes;
    constexpr int kForwards = 4;
    for (int i = 0; i < kForwards; ++i) net_->forward(x);
    synchronize();
    const uint64_t after = accelerant::offload_statistics(net_).fetched_bytes;
    return static_cast<int64_t>((after - before) / kForwards);
  }

  void synchronize() const {
    if (device_.is_cuda()) torch::cuda::synchronize();
  }

  void place(const std::string& form, int64_t budget, const std::string& folder) {
    if (form == "resident") return;
    if (form == "watched") {
      accelerant::cpu_offload(
          net_, {.execution_device = device_, .budget = std::numeric_limits<int64_t>::max()});
    } else if (form == "host") {
      accelerant::cpu_offload(net_, {.execution_device = device_, .budget = budget});
    } else if (form == "disk" || form == "copied") {
      accelerant::disk_offload(
          net_, folder,
          {.execution_device = device_, .budget = budget, .zero_copy = form == "disk"});
    } else {
      throw std::runtime_error("no such form: " + form);
    }
  }

  at::Device device_;
  BigModel net_{nullptr};
};

std::string answer(Bench& bench, const std::string& request) {
  std::istringstream words(request);
  std::string what, form, size, folder;
  int64_t count = 0;
  double seconds = 0;
  words >> what;
  if (what == "prepare") {
    words >> form >> size >> count >> folder;
    return bench.prepare(form, size, count, folder);
  }
  words >> count >> seconds;
  if (what == "forward") return bench.forward(count, seconds);
  if (what == "step") return bench.step(count, seconds);
  if (what == "transfer") return bench.transfer(count, seconds);
  throw std::runtime_error("unknown request: " + request);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: bench-big-model cpu|cuda\n";
    return 2;
  }
  Bench bench(std::string(argv[1]) == "cuda" ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU));
  for (std::string request; std::getline(std::cin, request);) {
    try {
      std::cout << answer(bench, request) << std::endl;
    } catch (const std::exception& error) {
      std::cerr << error.what() << '\n';
      return 1;
    }
  }
}
