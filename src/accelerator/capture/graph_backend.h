// What a captured step needs of the device: a place to run beside the program's stream, and graphs.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace accelerant::detail {

struct Core;

// What all captured steps of a Core run on.
struct CaptureStreams;

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

  // Runs the work where it can be captured later. In order with what the program does before and after.
  virtual void run_beside(const std::function<void()>& work) = 0;

  // Until all that was queued is done.
  virtual void wait() const {}

  // Runs the work to remember what it queues, which is not done until the first replay. If it throws, nothing has
  // happened on the device. `work` can be called as long as the graph lives.
  virtual std::unique_ptr<StepGraph> capture(Core& core, std::function<void()> work) = 0;
};

// Null, with the reason, where steps of this Accelerator cannot be captured.
struct BackendChoice {
  std::unique_ptr<GraphBackend> backend = nullptr;
  std::string why_not = {};
};
BackendChoice backend_for(Core& core);

// Makes backend_for() return what `make` does while it lives. For tests.
class GraphBackendOverride {
 public:
  using Make = std::function<std::unique_ptr<GraphBackend>()>;

  explicit GraphBackendOverride(Make make);
  ~GraphBackendOverride();
  GraphBackendOverride(const GraphBackendOverride&) = delete;
  GraphBackendOverride& operator=(const GraphBackendOverride&) = delete;
};

}  // namespace accelerant::detail
