// Models with random structure for tests of offloading, and device maps for them.
#pragma once

#include <accelerant/paging/device_map.h>
#include <torch/torch.h>

#include <random>
#include <string>
#include <vector>

namespace models {

// Large enough that a weight is paged.
inline constexpr int64_t kWidth = 320;
inline constexpr int64_t kWords = 330;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(bool with_conv) {
    if (with_conv) conv = register_module("conv", torch::nn::Conv1d(kWidth, kWidth, 1));
    norm = register_module("norm", torch::nn::LayerNorm(std::vector<int64_t>{kWidth}));
    first = register_module("first", torch::nn::Linear(kWidth, 2 * kWidth));
    second = register_module("second", torch::nn::Linear(2 * kWidth, kWidth));
  }

  at::Tensor forward(at::Tensor x) {
    x = x + second(torch::gelu(first(norm(x))));
    if (conv) x = x + conv(x.transpose(1, 2)).transpose(1, 2);
    return x;
  }

  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::Conv1d conv{nullptr};
};
TORCH_MODULE(Block);

struct Shape {
  int64_t blocks = 2;
  bool is_tied = false;
  bool has_lstm = false;
  bool has_batch_norm = false;
  bool has_conv = false;
  bool uses_child_weight = false;  // without calling the child
};

inline Shape random_shape(std::mt19937& random) {
  const auto coin = [&] { return std::bernoulli_distribution(0.4)(random); };
  return {.blocks = std::uniform_int_distribution<int64_t>(1, 4)(random),
          .is_tied = coin(),
          .has_lstm = coin(),
          .has_batch_norm = coin(),
          .has_conv = coin(),
          .uses_child_weight = coin()};
}

struct LanguageModelImpl : torch::nn::Module {
  explicit LanguageModelImpl(const Shape& wanted) : shape(wanted) {
    words = register_module("words", torch::nn::Embedding(kWords, kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < shape.blocks; ++i) blocks->push_back(Block(shape.has_conv));
    if (shape.has_lstm) {
      lstm = register_module(
          "lstm", torch::nn::LSTM(torch::nn::LSTMOptions(kWidth, kWidth).batch_first(true)));
    }
    if (shape.has_batch_norm) {
      batch_norm = register_module("batch_norm", torch::nn::BatchNorm1d(kWidth));
    }
    if (shape.uses_child_weight) {
      dense = register_module("dense", torch::nn::Linear(kWidth, kWidth));
    }
    head = register_parameter(
        "head", shape.is_tied ? words->weight : 0.05 * torch::randn({kWords, kWidth}));
    table = register_buffer("table", torch::randn({kWords, kWidth}));
    scale = register_buffer("scale", torch::full({1}, 0.5));
  }

  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor rows = table.index_select(0, tokens.flatten());
    at::Tensor x = words(tokens) + scale * rows.view({tokens.size(0), tokens.size(1), kWidth});
    for (const auto& block : *blocks) x = block->as<BlockImpl>()->forward(x);
    if (lstm) x = x + std::get<0>(lstm(x));
    if (batch_norm) x = batch_norm(x.transpose(1, 2)).transpose(1, 2);
    if (dense) x = x + torch::matmul(x, dense->weight.t()) + dense->bias;
    return torch::linear(x, head);
  }

  Shape shape;
  torch::nn::Embedding words{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
  torch::nn::Linear dense{nullptr};
  at::Tensor head, table, scale;
};
TORCH_MODULE(LanguageModel);

// A model with values of its own, always the same for one seed.
inline LanguageModel make_model(const Shape& shape, uint64_t seed) {
  torch::manual_seed(seed);
  return LanguageModel(shape);
}

inline at::Tensor some_tokens(int64_t rows = 2) {
  return torch::randint(kWords, {rows, 7}, torch::kLong);
}

// A map that covers the whole model, with the names of modules and tensors at random.
inline accelerant::DeviceMap random_map(const torch::nn::Module& module,
                                        const std::vector<accelerant::Placement>& places,
                                        std::mt19937& random) {
  const auto somewhere = [&] {
    return places[std::uniform_int_distribution<std::size_t>(0, places.size() - 1)(random)];
  };
  accelerant::DeviceMap map;
  const auto names = module.named_modules("", /*include_self=*/false);
  for (const auto& item : names) {
    if (std::bernoulli_distribution(0.4)(random)) map.set(item.key(), somewhere());
  }
  for (const auto& item : module.named_parameters()) {
    if (std::bernoulli_distribution(0.1)(random)) map.set(item.key(), somewhere());
  }
  map.set("", somewhere());
  return map;
}

}  // namespace models
