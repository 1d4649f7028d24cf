// What bench-training and bench-distributed train: an almost empty network, a small CNN, a small GPT
// and a stack of wide layers. training_loop.py has the same ones.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

// Linear with the bias inside the product, as Python has it; torch::nn::Linear adds it afterwards
// where the input has three dimensions.
inline at::Tensor apply_linear(const torch::nn::Linear& layer, const at::Tensor& input) {
  return at::linear(input, layer->weight, layer->bias);
}

struct CnnImpl : torch::nn::Module {
  explicit CnnImpl(int64_t width)
      : conv1(register_module("conv1",
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(1, width, 3).padding(1)))),
        conv2(register_module(
            "conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, 2 * width, 3).padding(1)))),
        hidden(register_module("hidden", torch::nn::Linear(2 * width * 7 * 7, 128))),
        output(register_module("output", torch::nn::Linear(128, 10))) {}

  at::Tensor forward(at::Tensor x) {
    x = at::max_pool2d(at::relu(conv1(x)), 2);
    x = at::max_pool2d(at::relu(conv2(x)), 2);
    return output(at::relu(hidden(x.flatten(1))));
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Linear hidden, output;
};
TORCH_MODULE(Cnn);

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t head_count)
      : norm1(register_module("norm1", torch::nn::LayerNorm(std::vector{width}))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        projection(register_module("projection", torch::nn::Linear(width, width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(std::vector{width}))),
        wide(register_module("wide", torch::nn::Linear(width, 4 * width))),
        narrow(register_module("narrow", torch::nn::Linear(4 * width, width))),
        heads(head_count) {}

  at::Tensor attention(const at::Tensor& x) const {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = apply_linear(qkv, x).split(width, 2);
    const auto by_head = [&](const at::Tensor& part) {
      return part.view({batch, length, heads, width / heads}).transpose(1, 2);
    };
    const at::Tensor mixed =
        at::scaled_dot_product_attention(by_head(parts[0]), by_head(parts[1]), by_head(parts[2]),
                                         std::nullopt, 0.0, /*is_causal=*/true);
    return apply_linear(projection, mixed.transpose(1, 2).reshape({batch, length, width}));
  }

  at::Tensor forward(at::Tensor x) {
    x = x + attention(norm1(x));
    return x + apply_linear(narrow, at::gelu(apply_linear(wide, norm2(x))));
  }

  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, projection;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear wide, narrow;
  int64_t heads;
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  GptImpl(int64_t layers, int64_t width, int64_t heads, int64_t vocabulary, int64_t context)
      : tokens(register_module("tokens", torch::nn::Embedding(vocabulary, width))),
        positions(register_module("positions", torch::nn::Embedding(context, width))),
        norm(register_module("norm", torch::nn::LayerNorm(std::vector{width}))),
        head(register_module("head", torch::nn::Linear(width, vocabulary))) {
    for (int64_t i = 0; i < layers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block(width, heads)));
    }
  }

  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = tokens(ids) + positions(at::arange(ids.size(1), ids.options()));
    for (auto& block : blocks) x = block(x);
    return apply_linear(head, norm(x));
  }

  torch::nn::Embedding tokens, positions;
  std::vector<Block> blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Gpt);

// A task is a network, its loss, its optimizer, and data of so many batches on the CPU. `large` is
// for a GPU.

struct EmptyTask {
  explicit EmptyTask(bool) {}

  int64_t batch = 1;

  auto make_network() const { return torch::nn::Linear(1, 1); }
  std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> of) const {
    return std::make_shared<torch::optim::SGD>(std::move(of), torch::optim::SGDOptions(1e-3));
  }
  std::tuple<at::Tensor, at::Tensor> make_data(int64_t) const {
    return {at::ones({1, 1}), at::zeros({1, 1})};
  }
  static at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
    return at::mse_loss(output, target);
  }
};

struct CnnTask {
  explicit CnnTask(bool large) : batch(large ? 256 : 64), width(large ? 128 : 32) {}

  int64_t batch, width;

  auto make_network() const { return Cnn(width); }
  std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> of) const {
    return std::make_shared<torch::optim::AdamW>(std::move(of), torch::optim::AdamWOptions(1e-4));
  }
  std::tuple<at::Tensor, at::Tensor> make_data(int64_t batches) const {
    return {at::rand({batches * batch, 1, 28, 28}), at::randint(10, {batches * batch}, at::kLong)};
  }
  static at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
    return at::cross_entropy_loss(output, target);
  }
};

struct GptTask {
  explicit GptTask(bool large)
      : batch(large ? 32 : 16),
        layers(large ? 6 : 4),
        width(large ? 384 : 128),
        heads(large ? 6 : 4),
        context(large ? 256 : 64) {}

  int64_t batch, layers, width, heads, context;
  static constexpr int64_t vocabulary = 65;

  auto make_network() const { return Gpt(layers, width, heads, vocabulary, context); }
  std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> of) const {
    return std::make_shared<torch::optim::AdamW>(std::move(of), torch::optim::AdamWOptions(1e-4));
  }
  std::tuple<at::Tensor, at::Tensor> make_data(int64_t batches) const {
    const at::Tensor text = at::randint(vocabulary, {batches * batch, context + 1}, at::kLong);
    return {text.slice(1, 0, context).contiguous(), text.slice(1, 1).contiguous()};
  }
  static at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
    return at::cross_entropy_loss(output.flatten(0, 1), target.flatten());
  }
};

// 8.4 M parameters in few tensors: much to exchange for what there is to compute.
struct MlpTask {
  explicit MlpTask(int64_t rows) : batch(rows) {}

  int64_t batch;
  static constexpr int64_t layers = 8, width = 1024;

  auto make_network() const {
    torch::nn::Sequential network;
    for (int64_t i = 0; i < layers; ++i) {
      if (i > 0) network->push_back(torch::nn::ReLU());
      network->push_back(torch::nn::Linear(width, width));
    }
    return network;
  }
  std::shared_ptr<torch::optim::Optimizer> make_optimizer(std::vector<at::Tensor> of) const {
    return std::make_shared<torch::optim::SGD>(std::move(of), torch::optim::SGDOptions(1e-3));
  }
  std::tuple<at::Tensor, at::Tensor> make_data(int64_t batches) const {
    return {at::randn({batches * batch, width}), at::randn({batches * batch, width})};
  }
  static at::Tensor loss(const at::Tensor& output, const at::Tensor& target) {
    return at::mse_loss(output, target);
  }
};
