// How much memory a training or an inference takes, from the sizes of the model.
//
// The parts follow from what libtorch keeps: parameters, their gradients, the states of the
// optimizer, and what autograd saves between forward and backward. docs/estimate_memory.md derives
// the formulas; tests compare them with what allocators report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/memory/model_size.h"

namespace accelerant::cli {

struct TrainingPlan {
  std::uint64_t batch_size = 1;       // sequences in a micro-step of one process
  std::uint64_t sequence_length = 0;  // tokens
  std::string optimizer = "adamw";
  bool activation_checkpointing = false;
  bool accumulates = false;        // gradients live from one micro-step to the next
  bool has_master_weights = true;  // of 16-bit parameters
  bool gradient_as_bucket_view = false;
  std::uint64_t num_processes = 1;
  int sharding_stage = 0;  // 1: optimizer states, 2: gradients too, 3: parameters too
  bool offloads_parameters = false;
  std::optional<std::uint64_t> offload_budget = {};  // of them on the device; empty: three layers
  bool offloads_optimizer = false;
  bool offloads_activations = false;
};

// The types that parameters have and in which is computed.
struct NumberTypes {
  std::string name = {};  // "bf16"
  std::uint64_t parameter_bytes = 4;
  std::uint64_t compute_bytes = 4;

  bool uses_autocast() const { return compute_bytes < parameter_bytes; }
};

const std::vector<NumberTypes>& number_types();

// The optimizers that Accelerant knows, by name.
std::vector<std::string> known_optimizers();

// In bytes, for one process. Where activations are not known, they are missing in the sums.
struct TrainingMemory {
  // On the device.
  std::uint64_t parameters = 0;  // with buffers
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;  // states, and float32 copies of 16-bit parameters
  std::uint64_t autocast_copies = 0;
  std::optional<std::uint64_t> activations = {};  // what autograd saves
  std::optional<std::uint64_t> loss = {};         // from the predictions to their gradient
  std::uint64_t exchange = 0;                     // buffers to and from other processes
  std::uint64_t peak = 0;  // of the whole step; not all of it is there at the same time

  // In host memory, of what is offloaded.
  std::uint64_t host = 0;
};

struct InferenceMemory {
  std::uint64_t parameters = 0;
  std::uint64_t autocast_copies = 0;
  std::optional<std::uint64_t> activations = {};  // the largest that exist at once
  std::uint64_t peak = 0;
};

TrainingMemory training_memory(const ModelSize& model, const NumberTypes& types,
                               const TrainingPlan& plan);
InferenceMemory inference_memory(const ModelSize& model, const NumberTypes& types,
                                 const TrainingPlan& plan);

}  // namespace accelerant::cli
