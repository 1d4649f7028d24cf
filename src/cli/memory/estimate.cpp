#include "cli/memory/estimate.h"

#include <algorithm>
#include <array>

#include "cli/memory/activations.h"

namespace accelerant::cli {
namespace {

struct KnownOptimizer {
  const char* name;
  std::uint64_t states;  // tensors of the size of a parameter
};

constexpr std::array<KnownOptimizer, 8> kOptimizers = {{{"adagrad", 1},
                                                        {"adam", 2},
                                                        {"adamw", 2},
                                                        {"lion", 1},
                                                        {"rmsprop", 1},
                                                        {"sgd", 0},
                                                        {"sgd-momentum", 1},
                                                        {"amsgrad", 3}}};

std::uint64_t states_of(const std::string& optimizer) {
  return std::ranges::find(kOptimizers, optimizer, &KnownOptimizer::name)->states;
}

std::uint64_t divided(std::uint64_t bytes, std::uint64_t parts) {
  return (bytes + parts - 1) / parts;
}

std::uint64_t optimizer_bytes(const ModelSize& model, const NumberTypes& types,
                              const TrainingPlan& plan) {
  const bool has_masters = types.parameter_bytes < 4 && plan.has_master_weights;
  const std::uint64_t per_state = has_masters ? 4 : types.parameter_bytes;
  return model.parameters * (states_of(plan.optimizer) * per_state + (has_masters ? 4 : 0));
}

std::uint64_t autocast_bytes(const ModelSize& model, const NumberTypes& types) {
  return types.uses_autocast() ? model.matrix_elements * types.compute_bytes : 0;
}

// Moves what is offloaded from the device to the host.
void offload(const ModelSize& model, const NumberTypes& types, const TrainingPlan& plan,
             TrainingMemory& memory) {
  const std::uint64_t layer = model.largest_layer * types.parameter_bytes;
  if (plan.offloads_parameters) {
    // By default one layer in use, the one before it, and the next one.
    memory.host += memory.parameters;
    memory.parameters = std::min(memory.parameters, plan.offload_budget.value_or(3 * layer));
  }
  if (plan.offloads_optimizer) {
    // The host also receives the gradients, and sends the parameters from an image of its own.
    memory.host += memory.optimizer + 2 * memory.gradients;
    memory.optimizer = 0;
    // They leave while backward computes others, unless they add up or have to be exchanged.
    if (plan.num_processes == 1 && !plan.accumulates) {
      memory.gradients =
          std::min(memory.gradients, layer + model.largest_parameter * types.parameter_bytes);
    }
  }
}

void shard(const ModelSize& model, const NumberTypes& types, const TrainingPlan& plan,
           TrainingMemory& memory) {
  const std::uint64_t layer = model.largest_layer * types.parameter_bytes;
  if (plan.num_processes == 1) return;
  if (plan.sharding_stage == 0) {
    // Data parallelism copies gradients into the buckets that are exchanged.
    memory.exchange = plan.gradient_as_bucket_view ? 0 : memory.gradients;
    return;
  }
  memory.optimizer = divided(memory.optimizer, plan.num_processes);
  memory.exchange = layer;
  if (plan.sharding_stage >= 2) {
    memory.gradients = divided(memory.gradients, plan.num_processes);
    memory.exchange += layer;
  }
  if (plan.sharding_stage >= 3) {
    memory.parameters = divided(memory.parameters, plan.num_processes);
    memory.exchange += 2 * layer;
  }
}

}  // namespace

const std::vector<NumberTypes>& number_types() {
  static const std::vector<NumberTypes> types = {
      {.name = "fp32"},
      {.name = "fp16", .compute_bytes = 2},
      {.name = "bf16", .compute_bytes = 2},
      {.name = "bf16-weights", .parameter_bytes = 2, .compute_bytes = 2}};
  return types;
}

std::vector<std::string> known_optimizers() {
  std::vector<std::string> names;
  for (const KnownOptimizer& optimizer : kOptimizers) names.emplace_back(optimizer.name);
  std::ranges::sort(names);
  return names;
}

TrainingMemory training_memory(const ModelSize& model, const NumberTypes& types,
                               const TrainingPlan& plan) {
  TrainingMemory memory;
  const std::uint64_t buffers = model.buffers * types.parameter_bytes + model.other_bytes;
  memory.parameters = model.parameters * types.parameter_bytes;
  memory.gradients = model.parameters * types.parameter_bytes;
  memory.optimizer = optimizer_bytes(model, types, plan);
  memory.autocast_copies = autocast_bytes(model, types);
  shard(model, types, plan, memory);
  offload(model, types, plan, memory);
  memory.parameters += buffers;

  std::uint64_t block = 0;  // what backward has of one block besides what is saved
  if (model.config) {
    const Activations saved = saved_activations(*model.config, types, plan);
    memory.activations = saved.on_device;
    memory.loss = saved.loss;
    memory.host += saved.on_host;
    block = saved.one_block;
  }
  const std::uint64_t always = memory.parameters + memory.optimizer + memory.exchange;
  // When backward begins, everything is saved and no gradient is there yet; when it ends, it is the
  // other way round.
  const std::uint64_t begin = always + memory.autocast_copies + memory.activations.value_or(0) +
                              std::max(memory.loss.value_or(0), block) +
                              (plan.accumulates ? memory.gradients : 0);
  const std::uint64_t end = always + memory.gradients + block;
  memory.peak = std::max(begin, end);
  return memory;
}

InferenceMemory inference_memory(const ModelSize& model, const NumberTypes& types,
                                 const TrainingPlan& plan) {
  InferenceMemory memory;
  memory.parameters =
      (model.parameters + model.buffers) * types.parameter_bytes + model.other_bytes;
  memory.autocast_copies = autocast_bytes(model, types);
  if (model.config) memory.activations = inference_activations(*model.config, types, plan);
  memory.peak = memory.parameters + memory.autocast_copies + memory.activations.value_or(0);
  return memory;
}

}  // namespace accelerant::cli
