// Which graph a step needs: everything on the host that decides what the step queues on the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

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

// What graphs rely on, whatever their keys: objects, the memory of parameters and of optimizers'
// states, and rules that are part of them.
struct Surroundings {
  uint64_t objects_and_rules = 0;
  // 0 for one that has not stepped on the device as it is now.
  std::vector<uint64_t> optimizers = {};

  // Whether graphs that were captured here can be replayed there.
  bool allow_graphs_in(const Surroundings& there) const;
};
Surroundings surroundings_of(const Core& core);

// Whether anything is alive that autograd has made with a parameter on another stream than this. It
// binds the gradient of a parameter to the stream of the first operation that uses it for that
// long, and a capture cannot join other streams. Without a stream, anything at all, except what the
// exchange of gradients holds.
bool has_live_graph(const Core& core, const std::optional<c10::Stream>& stream);

// Counts up with every change of memory or order in exchanges of gradients between processes.
std::size_t fingerprint_of_exchanges(const Core& core);

// Whether a forward has run whose gradients are to be exchanged in its backward.
bool has_gradients_to_exchange(const Core& core);

uint64_t hash_of(const StepKey& key);

// Why no graph fits the state that the step begins with, although one may fit the next; empty if
// one can.
std::string why_not_now(const Core& core, const std::vector<std::shared_ptr<Window>>& windows);

}  // namespace accelerant::detail
