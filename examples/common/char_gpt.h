// A small GPT on characters, and how it generates text.
#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <string>

#include "common/char_text.h"

namespace examples {

struct GptOptions {
  int64_t vocabulary = 0;  // number of symbols
  int64_t context = 64;    // tokens it can see, the current one included
  int64_t width = 128;     // size of a token's vector, a multiple of heads
  int64_t heads = 4;
  int64_t layers = 4;
};

// Every token looks at itself and at the tokens before it.
class SelfAttentionImpl : public torch::nn::Module {
 public:
  explicit SelfAttentionImpl(const GptOptions& options)
      : heads_(options.heads),
        to_qkv_(register_module("to_qkv", torch::nn::Linear(options.width, 3 * options.width))),
        to_output_(register_module("to_output", torch::nn::Linear(options.width, options.width))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const int64_t batch = x.size(0);
    const int64_t length = x.size(1);
    const int64_t width = x.size(2);
    const auto qkv = to_qkv_->forward(x)
                         .view({batch, length, 3, heads_, width / heads_})
                         .permute({2, 0, 3, 1, 4});  // [3, batch, heads, length, width / heads]
    const auto mixed = torch::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], /*attn_mask=*/{},
                                                           /*dropout_p=*/0.0, /*is_causal=*/true);
    return to_output_->forward(mixed.transpose(1, 2).reshape({batch, length, width}));
  }

 private:
  int64_t heads_;
  torch::nn::Linear to_qkv_;
  torch::nn::Linear to_output_;
};
TORCH_MODULE(SelfAttention);

class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptOptions& options)
      : norm1_(register_module("norm1", norm(options))),
        attention_(register_module("attention", SelfAttention(options))),
        norm2_(register_module("norm2", norm(options))),
        mlp_(register_module(
            "mlp", torch::nn::Sequential(torch::nn::Linear(options.width, 4 * options.width),
                                         torch::nn::GELU(),
                                         torch::nn::Linear(4 * options.width, options.width)))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + attention_->forward(norm1_->forward(x));
    return x + mlp_->forward(norm2_->forward(x));
  }

 private:
  static torch::nn::LayerNorm norm(const GptOptions& options) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width}));
  }

  torch::nn::LayerNorm norm1_;
  SelfAttention attention_;
  torch::nn::LayerNorm norm2_;
  torch::nn::Sequential mlp_;
};
TORCH_MODULE(GptBlock);

class CharGptImpl : public torch::nn::Module {
 public:
  explicit CharGptImpl(const GptOptions& options)
      : options_(options),
        symbols_(
            register_module("symbols", torch::nn::Embedding(options.vocabulary, options.width))),
        places_(register_module("places", torch::nn::Embedding(options.context, options.width))),
        blocks_(register_module("blocks", torch::nn::Sequential())),
        norm_(register_module("norm",
                              torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.width})))),
        to_logits_(register_module(
            "to_logits",
            torch::nn::Linear(
                torch::nn::LinearOptions(options.width, options.vocabulary).bias(false)))) {
    for (int64_t i = 0; i < options.layers; ++i) blocks_->push_back(GptBlock(options));
    // torch's default for embeddings, a deviation of 1, drowns what the first layers add to them.
    const torch::NoGradGuard no_grad;
    symbols_->weight.normal_(0.0, 0.1);
    places_->weight.normal_(0.0, 0.1);
  }

  const GptOptions& options() const { return options_; }

  // Tokens [batch, length], length at most the context, to logits [batch, length, vocabulary].
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto places = torch::arange(tokens.size(1), tokens.options());
    const auto x = symbols_->forward(tokens) + places_->forward(places);
    return to_logits_->forward(norm_->forward(blocks_->forward(x)));
  }

 private:
  GptOptions options_;
  torch::nn::Embedding symbols_;
  torch::nn::Embedding places_;
  torch::nn::Sequential blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear to_logits_;
};
TORCH_MODULE(CharGpt);

// Continues the tokens of `prompt` until the network ends the line, with at most `count` characters.
// A lower temperature takes fewer risks.
inline std::string generate(CharGpt& net, const CharText& text, const torch::Tensor& prompt,
                            int64_t count, torch::Device device, double temperature = 0.8) {
  const torch::NoGradGuard no_grad;
  const int64_t line_end = text.token('\n');
  auto tokens = prompt.to(device).unsqueeze(0);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = std::max<int64_t>(0, tokens.size(1) - net->options().context);
    const auto logits = net->forward(tokens.slice(1, begin)).select(1, -1);
    const auto chances = torch::softmax(logits.to(torch::kFloat) / temperature, -1);
    const auto next = torch::multinomial(chances, 1);
    if (next.item<int64_t>() == line_end) break;
    tokens = torch::cat({tokens, next}, 1);
  }
  return text.decode(tokens);
}

}  // namespace examples
