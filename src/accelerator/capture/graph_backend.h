// What a captured step needs from the device: a side stream to run on, and graphs. It is an
// interface, so that tests can use a backend that runs the step again in each replay. This checks
// the host's part of a replay on a CPU, too.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace accelerant::detail {

struct Core;

// Work that was queued once and can be queued again.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  virtual void replay() = 0;
};

class GraphBackend {
 public:
  virtual ~GraphBackend() = default;

  // Whether graphs contain only work of the device, so that optimizers must step there.
  virtual bool needs_steps_on_device() const = 0;

  // The stream on which the work runs and is captured; nullopt if there are no streams.
  virtual std::optional<c10::Stream> stream() const { return std::nullopt; }

  // Runs the work where it can be captured later. It stays ordered with the program's work before
  // and after it.
  virtual void run_beside(const std::function<void()>& work) = 0;

  // Waits until all queued work is done.
  virtual void wait() const {}

  // Runs the work and records what it queues, without executing it until the first replay. If the
  // work throws, nothing has happened on the device. `work` stays callable as long as the graph
  // lives.
  virtual std::unique_ptr<StepGraph> capture(std::function<void()> work) = 0;
};

// A null backend, with the reason, if steps of the Accelerator cannot be captured.
struct BackendChoice {
  std::unique_ptr<GraphBackend> backend = nullptr;
  std::string why_not = {};
};

// Called once for each captured step. The result must not be used after the Core is gone, but may
// outlive it.
using MakeBackend = std::function<BackendChoice(Core& core)>;

// CUDA graphs, all captured on the same stream.
MakeBackend cuda_graphs();

}  // namespace accelerant::detail
