// What bench-training and bench-distributed train: an almost empty network, a small CNN, a stack of
// wide layers and GPTs of three sizes. training_tasks.py has the same tasks.
//
// Networks and losses take their parts as a parameter: PlainParts are what a plain libtorch program
// uses, and OurParts are what the Accelerant documentation recommends.
#pragma once

#include <accelerant/nn/layers.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

struct PlainParts {
  using Linear = torch::nn::Linear;
  static at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
    return at::cross_entropy_loss(output, target);
  }
};

struct OurParts {
  using Linear = accelerant::nn::Linear;
  static at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
    return accelerant::nn::functional::cross_entropy(output, target);
  }
};

template <class Linear>
struct CnnImpl : torch::nn::Module {
  explicit CnnImpl(int64_t width)
      : conv1(register_module("conv1",
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(1, width, 3).padding(1)))),
        conv2(register_module(
            "conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, 2 * width, 3).padding(1)))),
        hidden(register_module("hidden", Linear(2 * width * 7 * 7, 128))),
        output(register_module("output", Linear(128, 10))) {}

  at::Tensor forward(at::Tensor x) {
    x = at::max_pool2d(at::relu(conv1(x)), 2);
    x = at::max_pool2d(at::relu(conv2(x)), 2);
    return output(at::relu(hidden(x.flatten(1))));
  }

  torch::nn::Conv2d conv1, conv2;
  Linear hidden, output;
};

template <class Linear>
struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t head_count)
      : norm1(register_module("norm1", torch::nn::LayerNorm(std::vector{width}))),
        qkv(register_module("qkv", Linear(width, 3 * width))),
        projection(register_module("projection", Linear(width, width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(std::vector{width}))),
        wide(register_module("wide", Linear(width, 4 * width))),
        narrow(register_module("narrow", Linear(4 * width, width))),
        heads(head_count) {}

  at::Tensor attention(const at::Tensor& x) {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = qkv(x).split(width, 2);
    const auto by_head = [&](const at::Tensor& part) {
      return part.view({batch, length, heads, width / heads}).transpose(1, 2);
    };
    const at::Tensor mixed =
        at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]),
                                         std::nullopt, 0.0, /*is_causal=*/true);
    return projection(mixed.transpose(1, 2).reshape({batch, length, width}));
  }

  at::Tensor forward(at::Tensor x) {
    x = x + attention(norm1(x));
    return x + narrow(at::gelu(wide(norm2(x))));
  }

  torch::nn::LayerNorm norm1;
  Linear qkv, projection;
  torch::nn::LayerNorm norm2;
  Linear wide, narrow;
  int64_t heads;
};

template <class Linear>
struct GptImpl : torch::nn::Module {
  GptImpl(int64_t layers, int64_t width, int64_t heads, int64_t vocabulary, int64_t context)
      : tokens(register_module("tokens", torch::nn::Embedding(vocabulary, width))),
        positions(register_module("positions", torch::nn::Embedding(context, width))),
        norm(register_module("norm", torch::nn::LayerNorm(std::vector{width}))) {
    for (int64_t i = 0; i < layers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block(width, heads)));
    }
    torch::nn::init::normal_(tokens->weight, 0.0, 0.02);
    torch::nn::init::normal_(positions->weight, 0.0, 0.02);
  }

  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = tokens(ids) + positions(at::arange(ids.size(1), ids.options()));
    for (auto& block : blocks) x = block(x);
    return at::linear(norm(x), tokens->weight);  // the head shares the weights of the embedding
  }

  using Block = torch::nn::ModuleHolder<BlockImpl<Linear>>;

  torch::nn::Embedding tokens, positions;
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm;
};

// A task is a network, its loss (and whether OurParts compute it accurately from 16-bit outputs),
// its optimizer, and data for a given number of batches on the CPU.

struct EmptyTask {
  int64_t batch = 1;

  template <class Parts>
  auto make_network() const {
    return typename Parts::Linear(1, 1);
  }
  std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> of) const {
    return std::make_shared<torch::optim::SGD>(std::move(of), torch::optim::SGDOptions(1e-3));
  }
  std::tuple<at::Tensor, at::Tensor> make_data(int64_t batches) const {
    return {at::ones({batches, 1}), at::zeros({batches, 1})};
  }
  static constexpr bool kTakes16Bits = false;
  template <class Parts>
  static at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
    return at::mse_loss(output, target);
  }
};

struct CnnTask {
  int64_t batch, width;

  template <class Parts>
  auto make_network() const {
    return torch::nn::ModuleHolder<CnnImpl<typename Parts::Linear>>(width);
  }
  std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> of) const {
    return std::make_shared<torch::optim::AdamW>(std::move(of), torch::optim::AdamWOptions(1e-4));
  }
  std::tuple<at::Tensor, at::Tensor> make_data(int64_t batches) const {
    return {at::rand({batches * batch, 1, 28, 28}), at::randint(10, {batches * batch}, at::kLong)};
  }
  static constexpr bool kTakes16Bits = true;
  template <class Parts>
  static at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
    return Parts::cross_entropy(output, target);
  }
};

struct GptTask {
  int64_t batch, length, layers, width, heads, vocabulary, context;

  template <class Parts>
  auto make_network() const {
    return torch::nn::ModuleHolder<GptImpl<typename Parts::Linear>>(layers, width, heads,
                                                                    vocabulary, context);
  }
  std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> of) const {
    return std::make_shared<torch::optim::AdamW>(std::move(of), torch::optim::AdamWOptions(1e-4));
  }
  std::tuple<at::Tensor, at::Tensor> make_data(int64_t batches) const {
    const at::Tensor text = at::randint(vocabulary, {batches * batch, length + 1}, at::kLong);
    return {text.slice(1, 0, length).contiguous(), text.slice(1, 1).contiguous()};
  }
  static constexpr bool kTakes16Bits = true;
  template <class Parts>
  static at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
    return Parts::cross_entropy(output.flatten(0, 1), target.flatten());
  }
};

// 8.4 M parameters in few tensors: a lot to exchange for little computation.
struct MlpTask {
  int64_t batch;
  static constexpr int64_t layers = 8, width = 1024;

  template <class Parts>
  auto make_network() const {
    torch::nn::Sequential network;
    for (int64_t i = 0; i < layers; ++i) {
      if (i > 0) network->push_back(torch::nn::ReLU());
      network->push_back(typename Parts::Linear(width, width));
    }
    return network;
  }
  std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> of) const {
    return std::make_shared<torch::optim::SGD>(std::move(of), torch::optim::SGDOptions(1e-3));
  }
  std::tuple<at::Tensor, at::Tensor> make_data(int64_t batches) const {
    return {at::randn({batches * batch, width}), at::randn({batches * batch, width})};
  }
  static constexpr bool kTakes16Bits = false;
  template <class Parts>
  static at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
    return at::mse_loss(output, target);
  }
};

// A name may end with the batch size: cnn-4.
inline std::pair<std::string, std::optional<int64_t>> name_and_batch(const std::string& name) {
  const size_t dash = name.rfind('-') + 1;
  if (dash == 0 || name.find_first_not_of("0123456789", dash) != std::string::npos) {
    return {name, std::nullopt};
  }
  return {name.substr(0, dash - 1), std::stoll(name.substr(dash))};
}

// Calls use(task) with the task of that name. Batches are small on a CPU.
template <class Use>
auto with_task(const std::string& name, bool cuda, const Use& use) {
  const auto [kind, batch] = name_and_batch(name);
  if (kind == "empty") return use(EmptyTask{});
  if (kind == "cnn") {
    return use(CnnTask{.batch = batch.value_or(cuda ? 256 : 64), .width = cuda ? 128 : 32});
  }
  if (kind == "mlp") return use(MlpTask{.batch = batch.value_or(cuda ? 512 : 64)});
  if (kind == "gpt-tiny") {
    return use(GptTask{.batch = batch.value_or(cuda ? 32 : 16),
                       .length = 64,
                       .layers = 4,
                       .width = 128,
                       .heads = 4,
                       .vocabulary = 65,
                       .context = 64});
  }
  if (kind == "gpt-nano") {
    return use(GptTask{.batch = batch.value_or(cuda ? 16 : 4),
                       .length = cuda ? 256 : 64,
                       .layers = 6,
                       .width = 384,
                       .heads = 6,
                       .vocabulary = 65,
                       .context = 256});
  }
  if (kind == "gpt-small") {
    return use(GptTask{.batch = batch.value_or(8),
                       .length = 1024,
                       .layers = 12,
                       .width = 768,
                       .heads = 12,
                       .vocabulary = 50304,  // 50257, rounded up to a multiple of 64 as usual
                       .context = 1024});
  }
  throw std::invalid_argument("no such task: " + name);
}
