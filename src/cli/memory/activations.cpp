#include "cli/memory/activations.h"

#include <algorithm>

#include "cli/memory/estimate.h"

namespace accelerant::cli {
namespace {

constexpr std::uint64_t kFloat = 4;
constexpr std::uint64_t kIndex = 8;

// Bytes per token. Under autocast, the hidden states between the blocks are float32 and what
// matrix products read is 16-bit.
struct TokenBytes {
  std::uint64_t hidden = 0;   // one number of the hidden states
  std::uint64_t compute = 0;  // one number that a matrix product reads or writes

  explicit TokenBytes(const NumberTypes& types)
      : hidden(types.parameter_bytes), compute(types.compute_bytes) {}
};

// The inputs of both norms, their outputs (which the matrix products read), queries, keys, values
// and the result of attention, and the feed-forward part: what its activation function reads, and
// what the last matrix product reads. Attention by blocks saves no scores, but one sum per head.
std::uint64_t saved_by_block(const Transformer& model, const TokenBytes& bytes) {
  const std::uint64_t norms = 2 * model.width * (bytes.hidden + bytes.compute);
  const std::uint64_t attention =
      2 * model.head_width * (model.heads + model.key_heads) * bytes.compute + model.heads * kFloat;
  // A gate adds its activation and the product of both halves.
  const std::uint64_t inner = model.family == Transformer::Family::llama ? 4 : 2;
  const std::uint64_t feed_forward = inner * model.inner_width * bytes.compute;
  const std::uint64_t statistics =
      (model.family == Transformer::Family::llama ? 2 : 4) * kFloat;  // of the norms
  const std::uint64_t masks = model.has_dropout ? 2 * model.width : 0;
  return norms + attention + feed_forward + statistics + masks;
}

// The token, its target and position; what comes after the last block.
std::uint64_t saved_beside_blocks(const Transformer& model, const TokenBytes& bytes) {
  const std::uint64_t masks = model.has_dropout ? model.width : 0;
  std::uint64_t saved = 2 * kIndex + masks + model.width * bytes.hidden;
  if (model.has_language_head) {
    saved += model.width * bytes.compute;
    // A dense layer, an activation and a norm before the head.
    if (model.family == Transformer::Family::bert) {
      saved += model.width * (2 * bytes.compute + bytes.hidden);
    }
  }
  return saved;
}

// The loss works in float32 under autocast: logarithms of the probabilities, their gradient, and
// that of the predictions.
std::uint64_t loss_bytes(const Transformer& model, const NumberTypes& types) {
  return model.has_language_head ? 3 * model.vocabulary * types.parameter_bytes : 0;
}

std::uint64_t tokens_in(const TrainingPlan& plan) { return plan.batch_size * plan.sequence_length; }

}  // namespace

Activations saved_activations(const Transformer& model, const NumberTypes& types,
                              const TrainingPlan& plan) {
  const TokenBytes bytes(types);
  const std::uint64_t tokens = tokens_in(plan);
  const std::uint64_t block = tokens * saved_by_block(model, bytes);
  const std::uint64_t rest = tokens * saved_beside_blocks(model, bytes);
  // The gradient of the widest tensor of a block, and of what it is made from.
  const std::uint64_t gradients =
      tokens * (2 * model.inner_width * bytes.compute + model.width * bytes.hidden);
  Activations saved{.one_block = gradients, .loss = tokens * loss_bytes(model, types)};
  if (!plan.activation_checkpointing) {
    saved.on_device = model.layers * block + rest;
    return saved;
  }
  const std::uint64_t input = tokens * model.width * bytes.hidden;
  const std::uint64_t kept =
      plan.offloads_activations ? std::min<std::uint64_t>(model.layers, 2) : model.layers;
  saved.on_device = kept * input + rest;
  saved.on_host = (model.layers - kept) * input;
  saved.one_block = block + gradients;
  return saved;
}

std::uint64_t inference_activations(const Transformer& model, const NumberTypes& types,
                                    const TrainingPlan& plan) {
  const TokenBytes bytes(types);
  const std::uint64_t attention =
      model.head_width * (2 * model.heads + 2 * model.key_heads) * bytes.compute;
  const std::uint64_t inner = model.family == Transformer::Family::llama ? 3 : 2;
  const std::uint64_t feed_forward = inner * model.inner_width * bytes.compute;
  // What goes into the block and between its halves; what a half reads and what it computes.
  const std::uint64_t in_block =
      2 * model.width * (bytes.hidden + bytes.compute) + std::max(attention, feed_forward);
  const std::uint64_t at_head =
      model.has_language_head
          ? model.width * (bytes.hidden + bytes.compute) + model.vocabulary * bytes.compute
          : 0;
  return tokens_in(plan) * std::max(in_block, at_head);
}

}  // namespace accelerant::cli
