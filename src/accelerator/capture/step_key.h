// Which graph a step needs: everything on the host that decides what the step queues on the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace accelerant::detail {

struct Core;
struct Window;

// Steps with equal keys queue the same.
using StepKey = std::vector<uint64_t>;

// For a step that begins now. `windows` are those that it enters.
StepKey key_of_step(const Core& core, const std::vector<at::Tensor>& inputs,
                    const std::vector<std::shared_ptr<Window>>& windows, bool keeps_gradients);

// Another number when a graph of before would work on what is not the training's any more: objects came or went,
// parameters have moved, a state was loaded, or rules have changed that are part of graphs.
uint64_t fingerprint_of_surroundings(const Core& core);

// Why no graph fits the state that the step begins with, although one may fit the next; empty if one can.
std::string why_not_now(const Core& core, const std::vector<std::shared_ptr<Window>>& windows);

}  // namespace accelerant::detail
