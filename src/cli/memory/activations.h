// What a transformer keeps between forward and backward.
#pragma once

#include <cstdint>

#include "cli/memory/transformer.h"

namespace accelerant::cli {

struct NumberTypes;
struct TrainingPlan;

// In bytes.
struct Activations {
  std::uint64_t on_device = 0;  // saved when forward ends
  std::uint64_t on_host = 0;    // of that, what is offloaded instead
  std::uint64_t one_block = 0;  // what backward needs for one block besides
  std::uint64_t loss = 0;       // at most, from the predictions to their gradient
};

Activations saved_activations(const Transformer& model, const NumberTypes& types,
                              const TrainingPlan& plan);

// The largest tensors that exist at once if nothing is saved.
std::uint64_t inference_activations(const Transformer& model, const NumberTypes& types,
                                    const TrainingPlan& plan);

}  // namespace accelerant::cli
