// Trains a small transformer and reports what its memory is used for, to compare with what
// `accelerant estimate-memory` expects:
//
//   memory-probe FAMILY FOLDER DEVICE PRECISION BATCH LENGTH LAYERS WIDTH VOCABULARY CHECKPOINTING
//                [OFFLOAD]
//
// FAMILY is gpt2, llama or bert, PRECISION fp32, bf16 or bf16-weights. OFFLOAD names what an
// Accelerator offloads, as in parameters,optimizer. Writes the model with its config.json to FOLDER,
// and prints one JSON object.

#include <accelerant/accelerant.h>
#include <accelerant/amp/autocast.h>
#include <accelerant/checkpoint/models.h>
#include <accelerant/nn/activation_checkpoint.h>
#include <accelerant/optim/fused_step.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/torch.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

namespace {

// What is allocated on the device: now, and at most since reset(). A GPU's allocator rounds up, by as
// much as 1 MiB per tensor. The peak includes that, as it is what has to fit; amounts do not.
class Meter {
 public:
  explicit Meter(at::Device device)
      : gpu_(device.is_cpu() ? nullptr : c10::getDeviceAllocator(device.type())) {
    if (gpu_ == nullptr) guard_.emplace(c10::DebugInfoKind::PROFILER_STATE, counter_);
  }

  int64_t now() const {
    return gpu_ != nullptr ? gpu_->getDeviceStats(0).requested_bytes[0].current
                           : counter_->now.load();
  }
  int64_t peak() const {
    return gpu_ != nullptr ? gpu_->getDeviceStats(0).allocated_bytes[0].peak
                           : counter_->peak.load();
  }

  void reset() {
    if (gpu_ != nullptr) gpu_->resetPeakStats(0);
    counter_->peak = counter_->now.load();
  }

 private:
  // The CPU's allocator reports to whoever takes the place of a profiler.
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device device) override {
      if (!device.is_cpu()) return;
      now += size;
      peak = std::max<int64_t>(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }

    std::atomic<int64_t> now = 0;
    std::atomic<int64_t> peak = 0;
  };

  c10::DeviceAllocator* gpu_;
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  std::optional<c10::DebugInfoGuard> guard_ = std::nullopt;
};

struct Sizes {
  std::string family;
  int64_t layers, width, inner, heads, vocabulary, positions;
};

at::Tensor by_head(const at::Tensor& x, int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool is_causal) {
  const at::Tensor mixed = at::scaled_dot_product_attention(q, k, v, std::nullopt, 0.0, is_causal);
  return mixed.transpose(1, 2).flatten(2);
}

struct NormImpl : torch::nn::Module {
  NormImpl(int64_t width, bool is_rms) : rms(is_rms) {
    weight = register_parameter("weight", torch::ones({width}));
    if (!rms) bias = register_parameter("bias", torch::zeros({width}));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (rms) return at::rms_norm(x, weight.sizes(), weight, 1e-6);
    return at::layer_norm(x, weight.sizes(), weight, bias);
  }
  bool rms;
  at::Tensor weight, bias;
};
TORCH_MODULE(Norm);

struct ProjectionImpl : torch::nn::Module {
  ProjectionImpl(int64_t from, int64_t to, bool has_bias = true) {
    weight = register_parameter("weight", torch::randn({to, from}) * 0.02);
    if (has_bias) bias = register_parameter("bias", torch::zeros({to}));
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
  at::Tensor weight, bias;
};
TORCH_MODULE(Projection);

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const Sizes& sizes)
      : family(sizes.family),
        heads(sizes.heads),
        first(register_module("first", Norm(sizes.width, family == "llama"))),
        second(register_module("second", Norm(sizes.width, family == "llama"))),
        out(register_module("out", Projection(sizes.width, sizes.width, family != "llama"))),
        wide(register_module("wide", Projection(sizes.width, sizes.inner, family != "llama"))),
        narrow(register_module("narrow", Projection(sizes.inner, sizes.width, family != "llama"))) {
    if (family != "llama") {
      qkv = register_module("qkv", Projection(sizes.width, 3 * sizes.width));
      return;
    }
    q = register_module("q", Projection(sizes.width, sizes.width, false));
    k = register_module("k", Projection(sizes.width, sizes.width, false));
    v = register_module("v", Projection(sizes.width, sizes.width, false));
    gate = register_module("gate", Projection(sizes.width, sizes.inner, false));
  }

  at::Tensor turned(const at::Tensor& x) const {
    const int64_t half = x.size(-1) / 2;
    const at::Tensor swapped = at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1);
    const at::Tensor angle = at::ones({x.size(2), x.size(3)}, x.options());
    return x * angle + swapped * angle;
  }

  at::Tensor attention(const at::Tensor& x) {
    if (family == "llama") {
      const at::Tensor queries = turned(by_head(q(x), heads));
      const at::Tensor keys = turned(by_head(k(x), heads));
      return out(attend(queries, keys, by_head(v(x), heads), /*is_causal=*/true));
    }
    const auto parts = qkv(x).chunk(3, -1);
    return out(attend(by_head(parts[0], heads), by_head(parts[1], heads), by_head(parts[2], heads),
                      family != "bert"));
  }

  at::Tensor feed_forward(const at::Tensor& x) {
    if (family == "llama") return narrow(at::silu(gate(x)) * wide(x));
    return narrow(at::gelu(wide(x)));
  }

  at::Tensor forward(const at::Tensor& x) {
    if (family == "bert") {
      const at::Tensor y = first(x + attention(x));
      return second(y + feed_forward(y));
    }
    const at::Tensor y = x + attention(first(x));
    return y + feed_forward(second(y));
  }

  std::string family;
  int64_t heads;
  Norm first, second;
  Projection qkv = nullptr, q = nullptr, k = nullptr, v = nullptr, gate = nullptr;
  Projection out, wide, narrow;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Sizes& sizes)
      : family(sizes.family),
        tokens(
            register_module("embed_tokens", torch::nn::Embedding(sizes.vocabulary, sizes.width))),
        last(register_module("last", Norm(sizes.width, family == "llama"))) {
    if (family != "llama") {
      positions =
          register_module("embed_positions", torch::nn::Embedding(sizes.positions, sizes.width));
    }
    if (family == "bert") {
      dense = register_module("dense", Projection(sizes.width, sizes.width));
      dense_norm = register_module("dense_norm", Norm(sizes.width, false));
    }
    for (int64_t i = 0; i < sizes.layers; ++i) blocks->push_back(Block(sizes));
    register_module("layers", blocks);
  }

  at::Tensor forward(const at::Tensor& ids, bool checkpointing) {
    at::Tensor x = tokens(ids);
    if (positions) x = x + positions(at::arange(ids.size(1), ids.options()));
    if (family == "bert") x = last(x);
    for (const auto& module : *blocks) {
      auto& block = *module->as<BlockImpl>();
      x = checkpointing ? accelerant::nn::checkpoint(
                              [&block](const at::Tensor& input) { return block.forward(input); }, x)
                        : block.forward(x);
    }
    x = family == "bert" ? dense_norm(at::gelu(dense(x))) : last(x);
    return at::linear(x, tokens->weight);
  }

  std::string family;
  torch::nn::Embedding tokens, positions = nullptr;
  Norm last, dense_norm = nullptr;
  Projection dense = nullptr;
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Net);

nlohmann::json config_of(const Sizes& sizes) {
  if (sizes.family == "gpt2") {
    return {{"model_type", "gpt2"},           {"n_layer", sizes.layers},
            {"n_embd", sizes.width},          {"n_head", sizes.heads},
            {"n_inner", sizes.inner},         {"n_positions", sizes.positions},
            {"vocab_size", sizes.vocabulary}, {"resid_pdrop", 0.0}};
  }
  return {{"model_type", sizes.family},
          {"num_hidden_layers", sizes.layers},
          {"hidden_size", sizes.width},
          {"num_attention_heads", sizes.heads},
          {"intermediate_size", sizes.inner},
          {"max_position_embeddings", sizes.positions},
          {"vocab_size", sizes.vocabulary},
          {"hidden_dropout_prob", 0.0},
          {"tie_word_embeddings", true},
          {"architectures", {sizes.family == "bert" ? "BertForMaskedLM" : "LlamaForCausalLM"}}};
}

// Lets the libraries of a GPU allocate what they keep, in this thread and in that of backward.
void warm_up(at::Device device) {
  if (device.is_cpu()) return;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto options = at::TensorOptions(device).dtype(type);
    const at::Tensor weight = at::ones({64, 64}, options).requires_grad_();
    const at::Tensor bias = at::ones({64}, options).requires_grad_();
    at::linear(at::linear(at::ones({2, 64, 64}, options), weight, bias), weight).sum().backward();
  }
}

// A training with an Accelerator that offloads: the most memory that its steps take.
int64_t peak_with_offload(Net net, at::Device device, const std::string& precision,
                          const at::Tensor& ids, bool checkpointing, const std::string& what) {
  const auto offloads = [&](const char* name) { return what.find(name) != std::string::npos; };
  accelerant::AcceleratorOptions options{.device = device,
                                         .master_weights = precision == "bf16-weights"};
  options.mixed_precision =
      precision == "bf16" ? accelerant::Precision::bf16 : accelerant::Precision::no;
  options.offload = {.parameters = offloads("parameters"),
                     .optimizer = offloads("optimizer"),
                     .activations = offloads("activations")};
  if (precision == "bf16-weights") net->to(at::kBFloat16);
  Meter meter(device);
  const int64_t nothing = meter.now();
  accelerant::Accelerator accelerator(options);
  torch::optim::AdamW adamw(net->parameters(), 1e-4);
  auto model = accelerator.prepare_model(net, {.float32_outputs = false});
  auto optimizer = accelerator.prepare(adamw);
  const at::Tensor input = ids.narrow(1, 0, ids.size(1) - 1).contiguous();
  const at::Tensor target = ids.narrow(1, 1, ids.size(1) - 1).flatten();
  for (int step = 0; step < 3; ++step) {
    meter.reset();
    accelerator.backward(at::cross_entropy_loss(model(input, checkpointing).flatten(0, 1), target));
    optimizer.step();
    optimizer.zero_grad();
  }
  return meter.peak() - nothing;
}

int run(const std::vector<std::string>& words) {
  const auto number = [&](std::size_t i) { return std::stoll(words.at(i)); };
  const std::string folder = words.at(1);
  const at::Device device(words.at(2));
  const std::string precision = words.at(3);
  const int64_t batch = number(4);
  const int64_t length = number(5);
  const Sizes sizes{.family = words.at(0),
                    .layers = number(6),
                    .width = number(7),
                    .inner = words.at(0) == "llama" ? number(7) * 3 : number(7) * 4,
                    .heads = number(7) / 32,
                    .vocabulary = number(8),
                    .positions = length};
  const bool checkpointing = number(9) != 0;

  Net net(sizes);
  accelerant::save_model(net, folder);
  std::ofstream(folder + "/config.json") << config_of(sizes);

  warm_up(device);
  if (words.size() > 10) {
    const at::Tensor ids = at::randint(sizes.vocabulary, {batch, length + 1}, at::kLong).to(device);
    const int64_t peak = peak_with_offload(net, device, precision, ids, checkpointing, words[10]);
    std::cout << nlohmann::json({{"peak", peak}}).dump() << '\n';
    return 0;
  }
  Meter meter(device);
  const int64_t nothing = meter.now();
  for (const at::Tensor& parameter : net->parameters()) {
    at::TensorOptions options = at::TensorOptions(device);
    if (precision == "bf16-weights") options = options.dtype(at::kBFloat16);
    at::Tensor(parameter).set_data(
        parameter.detach().to(options, /*non_blocking=*/false, /*copy=*/true));
  }
  const int64_t parameters = meter.now() - nothing;
  torch::optim::AdamW adamw(net->parameters(), 1e-4);
  accelerant::FusedStep fused(adamw, {.master_weights = precision == "bf16-weights"});
  const at::Tensor ids = at::randint(sizes.vocabulary, {batch, length + 1}, at::kLong).to(device);
  const at::Tensor input = ids.narrow(1, 0, length).contiguous();
  const at::Tensor target = ids.narrow(1, 1, length).flatten();

  nlohmann::json result = {{"parameters", parameters}};
  for (int step = 0; step < 3; ++step) {
    const int64_t before = meter.now();
    meter.reset();
    at::Tensor loss;
    {
      const accelerant::AutocastGuard autocast(
          {.device_type = device.type(), .dtype = at::kBFloat16, .enabled = precision == "bf16"});
      loss = at::cross_entropy_loss(net->forward(input, checkpointing).flatten(0, 1), target);
    }
    result["saved"] = meter.now() - before;
    const int64_t before_backward = meter.now();
    loss.backward();
    loss = at::Tensor();
    result["gradients"] = meter.now() - before;
    const int64_t before_step = meter.now();
    fused.step();
    if (step == 0) result["optimizer"] = meter.now() - before_step;
    result["peak"] = meter.peak() - nothing;
    result["before_backward"] = before_backward - nothing;
    adamw.zero_grad();
  }
  {
    const torch::NoGradGuard no_grad;
    const int64_t before = meter.now();
    meter.reset();
    const accelerant::AutocastGuard autocast(
        {.device_type = device.type(), .dtype = at::kBFloat16, .enabled = precision == "bf16"});
    net->forward(input, false);
    result["inference"] = meter.peak() - before + parameters;
  }
  std::cout << result.dump() << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
