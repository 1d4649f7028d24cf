// Identifies the graph that a step needs: everything on the host that determines what the step
// queues on the device.
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

// Steps with equal keys queue the same work.
using StepKey = std::vector<uint64_t>;

// The key of a step that begins now. `windows` are the windows that it enters.
StepKey key_of_step(const Core& core, const std::vector<at::Tensor>& inputs,
                    const std::vector<std::shared_ptr<Window>>& windows, bool keeps_gradients);

// What all graphs rely on, whatever their keys: objects, the memory of parameters and of
// optimizers' states, and rules that are built into them.
struct Surroundings {
  uint64_t objects_and_rules = 0;
  // 0 for an optimizer that has not stepped on the device in its current form.
  std::vector<uint64_t> optimizers = {};

  // Whether graphs captured in these surroundings can be replayed in `there`.
  bool allow_graphs_in(const Surroundings& there) const;
};
Surroundings surroundings_of(const Core& core);

// Whether autograd graphs are alive that use a parameter on a different stream. As long as one is,
// autograd binds the gradient of the parameter to the stream of the first operation that used it,
// and a capture cannot join other streams. Without a stream, checks for any such graph, except
// those that the exchange of gradients holds.
bool has_live_graph(const Core& core, const std::optional<c10::Stream>& stream);

// Increases with every change of memory or order in the exchanges of gradients between processes.
std::size_t fingerprint_of_exchanges(const Core& core);

// Whether a forward has run whose gradients must be exchanged in its backward.
bool has_gradients_to_exchange(const Core& core);

uint64_t hash_of(const StepKey& key);

// Why no graph fits the state at the beginning of this step, although one may fit the next; empty
// if one can.
std::string why_not_now(const Core& core, const std::vector<std::shared_ptr<Window>>& windows);

}  // namespace accelerant::detail
