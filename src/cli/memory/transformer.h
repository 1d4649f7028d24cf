// What the config.json of a transformer says about its size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accelerant::cli {

struct Transformer {
  enum class Family {
    gpt2,   // norm before each part, GELU
    llama,  // RMSNorm before each part, rotary positions, gated SiLU; Mistral and Qwen too
    bert    // norm after each part, GELU; RoBERTa too
  };

  std::string type = {};  // as in config.json: "gpt2", "mistral", ...
  Family family = Family::gpt2;
  std::uint64_t layers = 0;
  std::uint64_t width = 0;        // of the hidden states
  std::uint64_t inner_width = 0;  // of the feed-forward part
  std::uint64_t heads = 0;        // of queries
  std::uint64_t key_heads = 0;    // of keys and values
  std::uint64_t head_width = 0;
  std::uint64_t vocabulary = 0;
  std::uint64_t positions = 0;  // the longest sequence
  std::uint64_t segments = 0;   // BERT's token types
  bool has_qkv_bias = false;    // these three concern the family of Llama
  bool has_output_bias = false;
  bool has_mlp_bias = false;
  bool has_qk_norm = false;
  bool has_language_head = false;  // predicts a token at every position
  bool has_tied_head = false;      // with the weights of the embedding
  bool has_dropout = false;        // of the hidden states
};

// The shape of a tensor of the model, under the name that Hugging Face's transformers give it.
struct NamedShape {
  std::string name = {};
  std::vector<std::uint64_t> shape = {};

  std::uint64_t elements() const;
};

// Empty if the text is the configuration of another kind of model. Throws Error if it is damaged:
// `path` is for its message.
std::optional<Transformer> parse_transformer(const std::string& json, const std::string& path);

// The kinds of model that parse_transformer() knows: "bert, gpt2, llama, ...".
std::string known_transformers();

// The parameters of the model. A tied head has none of its own.
std::vector<NamedShape> parameters_of(const Transformer& model);

}  // namespace accelerant::cli
