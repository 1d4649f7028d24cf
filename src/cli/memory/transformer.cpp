#include "cli/memory/transformer.h"

#include <map>
#include <nlohmann/json.hpp>

#include "accelerant/core/error.h"
#include "core/texts.h"

namespace accelerant::cli {
namespace {

using Family = Transformer::Family;

const std::map<std::string, Family>& families() {
  static const std::map<std::string, Family> known = {
      {"bert", Family::bert},     {"gpt2", Family::gpt2},   {"llama", Family::llama},
      {"mistral", Family::llama}, {"qwen2", Family::llama}, {"qwen3", Family::llama},
      {"roberta", Family::bert}};
  return known;
}

// Larger numbers are no sizes of a model, and products of them would overflow.
constexpr std::uint64_t kLargestSize = std::uint64_t{1} << 28;
constexpr std::uint64_t kMostLayers = 100'000;

// Reads the values of a configuration and explains what is wrong with them.
class Config {
 public:
  Config(const nlohmann::json& values, const std::string& path) : values_(values), path_(path) {}

  std::uint64_t size(const char* key) const {
    if (!has(key)) fail(key, "nothing");
    const nlohmann::json& value = values_.at(key);
    if (!value.is_number_integer() || value.get<std::int64_t>() < 1 ||
        value.get<std::uint64_t>() > kLargestSize) {
      fail(key, value.dump());
    }
    return value.get<std::uint64_t>();
  }

  std::uint64_t size_or(const char* key, std::uint64_t otherwise) const {
    return has(key) ? size(key) : otherwise;
  }

  bool flag_or(const char* key, bool otherwise) const {
    return has(key) && values_.at(key).is_boolean() ? values_.at(key).get<bool>() : otherwise;
  }

  bool is_positive(const char* key, double otherwise) const {
    const bool is_number = has(key) && values_.at(key).is_number();
    return (is_number ? values_.at(key).get<double>() : otherwise) > 0;
  }

  // The class of the model, such as "GPT2LMHeadModel"; empty if it is not named.
  std::string architecture() const {
    if (!has("architectures") || !values_.at("architectures").is_array()) return "";
    const nlohmann::json& names = values_.at("architectures");
    return !names.empty() && names[0].is_string() ? names[0].get<std::string>() : "";
  }

 private:
  bool has(const char* key) const { return values_.contains(key) && !values_.at(key).is_null(); }

  [[noreturn]] void fail(const char* key, const std::string& got) const {
    throw Error(ErrorDetails{
        .problem = path_ + " does not say how large the model is",
        .expected = std::string(key) + ": a whole number from 1 to 2^28",
        .got = got,
        .hint = "correct the file, or move it away to estimate from the weights alone"});
  }

  const nlohmann::json& values_;
  const std::string& path_;
};

void read_gpt2(const Config& config, Transformer& model) {
  model.layers = config.size("n_layer");
  model.width = config.size("n_embd");
  model.heads = config.size("n_head");
  model.inner_width = config.size_or("n_inner", 4 * model.width);
  model.positions = config.size("n_positions");
  model.has_dropout = config.is_positive("resid_pdrop", 0.1);
}

void read_modern(const Config& config, Transformer& model) {
  model.layers = config.size("num_hidden_layers");
  model.width = config.size("hidden_size");
  model.heads = config.size("num_attention_heads");
  model.inner_width = config.size("intermediate_size");
  model.positions = config.size_or("max_position_embeddings", 2048);
}

void read_llama(const Config& config, Transformer& model) {
  read_modern(config, model);
  model.key_heads = config.size_or("num_key_value_heads", model.heads);
  model.head_width = config.size_or("head_dim", model.width / model.heads);
  model.has_qkv_bias = model.type == "qwen2" || config.flag_or("attention_bias", false);
  model.has_output_bias = model.type != "qwen2" && config.flag_or("attention_bias", false);
  model.has_mlp_bias = config.flag_or("mlp_bias", false);
  model.has_qk_norm = model.type == "qwen3";
}

void read_bert(const Config& config, Transformer& model) {
  read_modern(config, model);
  model.segments = config.size_or("type_vocab_size", 2);
  model.has_dropout = config.is_positive("hidden_dropout_prob", 0.1);
}

bool predicts_tokens(const std::string& architecture, Family family) {
  if (architecture.empty()) return family != Family::bert;
  for (const char* kind : {"ForCausalLM", "LMHead", "ForMaskedLM", "ForPreTraining"}) {
    if (architecture.find(kind) != std::string::npos) return true;
  }
  return false;
}

// Adds tensors with a common prefix.
class Adder {
 public:
  explicit Adder(std::vector<NamedShape>& tensors) : tensors_(tensors) {}

  void add(const std::string& name, std::vector<std::uint64_t> shape) {
    tensors_.push_back({.name = name, .shape = std::move(shape)});
  }

  // Weight and bias of a norm, or of a matrix.
  void norm(const std::string& name, std::uint64_t width, bool has_bias = true) {
    add(name + ".weight", {width});
    if (has_bias) add(name + ".bias", {width});
  }
  void linear(const std::string& name, std::uint64_t from, std::uint64_t to, bool has_bias = true) {
    add(name + ".weight", {to, from});
    if (has_bias) add(name + ".bias", {to});
  }

 private:
  std::vector<NamedShape>& tensors_;
};

void add_gpt2(const Transformer& model, Adder& to) {
  const std::string start = model.has_language_head ? "transformer." : "";
  to.add(start + "wte.weight", {model.vocabulary, model.width});
  to.add(start + "wpe.weight", {model.positions, model.width});
  for (std::uint64_t i = 0; i < model.layers; ++i) {
    const std::string block = start + "h." + std::to_string(i) + ".";
    to.norm(block + "ln_1", model.width);
    to.add(block + "attn.c_attn.weight", {model.width, 3 * model.width});
    to.add(block + "attn.c_attn.bias", {3 * model.width});
    to.linear(block + "attn.c_proj", model.width, model.width);
    to.norm(block + "ln_2", model.width);
    to.add(block + "mlp.c_fc.weight", {model.width, model.inner_width});
    to.add(block + "mlp.c_fc.bias", {model.inner_width});
    to.add(block + "mlp.c_proj.weight", {model.inner_width, model.width});
    to.add(block + "mlp.c_proj.bias", {model.width});
  }
  to.norm(start + "ln_f", model.width);
  if (model.has_language_head && !model.has_tied_head) {
    to.linear("lm_head", model.width, model.vocabulary, false);
  }
}

void add_llama(const Transformer& model, Adder& to) {
  const std::string start = model.has_language_head ? "model." : "";
  const std::uint64_t queries = model.heads * model.head_width;
  const std::uint64_t keys = model.key_heads * model.head_width;
  to.add(start + "embed_tokens.weight", {model.vocabulary, model.width});
  for (std::uint64_t i = 0; i < model.layers; ++i) {
    const std::string block = start + "layers." + std::to_string(i) + ".";
    to.linear(block + "self_attn.q_proj", model.width, queries, model.has_qkv_bias);
    to.linear(block + "self_attn.k_proj", model.width, keys, model.has_qkv_bias);
    to.linear(block + "self_attn.v_proj", model.width, keys, model.has_qkv_bias);
    to.linear(block + "self_attn.o_proj", queries, model.width, model.has_output_bias);
    if (model.has_qk_norm) {
      to.norm(block + "self_attn.q_norm", model.head_width, false);
      to.norm(block + "self_attn.k_norm", model.head_width, false);
    }
    to.linear(block + "mlp.gate_proj", model.width, model.inner_width, model.has_mlp_bias);
    to.linear(block + "mlp.up_proj", model.width, model.inner_width, model.has_mlp_bias);
    to.linear(block + "mlp.down_proj", model.inner_width, model.width, model.has_mlp_bias);
    to.norm(block + "input_layernorm", model.width, false);
    to.norm(block + "post_attention_layernorm", model.width, false);
  }
  to.norm(start + "norm", model.width, false);
  if (model.has_language_head && !model.has_tied_head) {
    to.linear("lm_head", model.width, model.vocabulary, false);
  }
}

void add_bert(const Transformer& model, Adder& to) {
  const std::string start = model.has_language_head ? model.type + "." : "";
  to.add(start + "embeddings.word_embeddings.weight", {model.vocabulary, model.width});
  to.add(start + "embeddings.position_embeddings.weight", {model.positions, model.width});
  to.add(start + "embeddings.token_type_embeddings.weight", {model.segments, model.width});
  to.norm(start + "embeddings.LayerNorm", model.width);
  for (std::uint64_t i = 0; i < model.layers; ++i) {
    const std::string block = start + "encoder.layer." + std::to_string(i) + ".";
    to.linear(block + "attention.self.query", model.width, model.width);
    to.linear(block + "attention.self.key", model.width, model.width);
    to.linear(block + "attention.self.value", model.width, model.width);
    to.linear(block + "attention.output.dense", model.width, model.width);
    to.norm(block + "attention.output.LayerNorm", model.width);
    to.linear(block + "intermediate.dense", model.width, model.inner_width);
    to.linear(block + "output.dense", model.inner_width, model.width);
    to.norm(block + "output.LayerNorm", model.width);
  }
  if (!model.has_language_head) return to.linear("pooler.dense", model.width, model.width);
  const bool is_roberta = model.type == "roberta";
  const std::string head = is_roberta ? "lm_head." : "cls.predictions.";
  to.linear(head + (is_roberta ? "dense" : "transform.dense"), model.width, model.width);
  to.norm(head + (is_roberta ? "layer_norm" : "transform.LayerNorm"), model.width);
  to.add(head + "bias", {model.vocabulary});
  if (!model.has_tied_head) to.linear(head + "decoder", model.width, model.vocabulary, false);
}

}  // namespace

std::uint64_t NamedShape::elements() const {
  std::uint64_t count = 1;
  for (const std::uint64_t size : shape) count *= size;
  return count;
}

std::string known_transformers() {
  std::vector<std::string> names;
  for (const auto& [name, family] : families()) names.push_back(name);
  return list_text(names);
}

std::optional<Transformer> parse_transformer(const std::string& json, const std::string& path) {
  const auto values = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!values.is_object()) {
    throw Error(ErrorDetails{.problem = path + " is damaged",
                             .expected = "a JSON object",
                             .got = values.is_discarded() ? "no JSON" : values.type_name(),
                             .hint = "download or write the file again"});
  }
  const auto type = values.find("model_type");
  if (type == values.end() || !type->is_string()) return std::nullopt;
  const auto family = families().find(type->get<std::string>());
  if (family == families().end()) return std::nullopt;

  const Config config(values, path);
  Transformer model{.type = family->first, .family = family->second};
  switch (model.family) {
    case Family::gpt2:
      read_gpt2(config, model);
      break;
    case Family::llama:
      read_llama(config, model);
      break;
    case Family::bert:
      read_bert(config, model);
      break;
  }
  if (model.layers > kMostLayers) {
    throw Error(path + " names " + std::to_string(model.layers) + " layers; at most " +
                std::to_string(kMostLayers) + " are possible");
  }
  if (model.key_heads == 0) model.key_heads = model.heads;
  if (model.head_width == 0) model.head_width = model.width / model.heads;
  model.vocabulary = config.size("vocab_size");
  model.has_language_head = predicts_tokens(config.architecture(), model.family);
  model.has_tied_head = config.flag_or("tie_word_embeddings", model.family != Family::llama);
  return model;
}

std::vector<NamedShape> parameters_of(const Transformer& model) {
  std::vector<NamedShape> tensors;
  Adder to(tensors);
  switch (model.family) {
    case Family::gpt2:
      add_gpt2(model, to);
      break;
    case Family::llama:
      add_llama(model, to);
      break;
    case Family::bert:
      add_bert(model, to);
      break;
  }
  return tensors;
}

}  // namespace accelerant::cli
