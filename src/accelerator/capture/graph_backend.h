// What a captured step needs of the device: a place to run beside the program's stream, and graphs.
// An interface, so that tests can put a backend in its place that runs the step anew in each
// replay, which tells on a CPU too whether the host's part of a replay is right.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace accelerant::detail {

struct Core;

// What was queued once and can be queued again.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  virtual void replay() = 0;
};

class GraphBackend {
 public:
  virtual ~GraphBackend() = default;

  // Whether graphs hold what the device does and nothing else, so that optimizers must step there.
  virtual bool needs_steps_on_device() const = 0;

  // Where the work runs and is captured; none where there are no streams.
  virtual std::optional<c10::Stream> stream() const { return std::nullopt; }

  // Runs the work where it can be captured later. In order with what the program does before and
  // after.
  virtual void run_beside(const std::function<void()>& work) = 0;

  // Until all that was queued is done.
  virtual void wait() const {}

  // Runs the work to remember what it queues, which is not done until the first replay. If it
  // throws, nothing has happened on the device. `work` can be called as long as the graph lives.
  virtual std::unique_ptr<StepGraph> capture(std::function<void()> work) = 0;
};

// Null, with the reason, where steps of an Accelerator cannot be captured.
struct BackendChoice {
  std::unique_ptr<GraphBackend> backend = nullptr;
  std::string why_not = {};
};

// Called once for each captured step. What it returns must not be used when the Core is gone, but
// may outlive it.
using MakeBackend = std::function<BackendChoice(Core& core)>;

// Graphs of CUDA, all captured on the same stream.
MakeBackend cuda_graphs();

}  // namespace accelerant::detail
