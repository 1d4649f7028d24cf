// Graphs for tests without a GPU.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "accelerator/capture/graph_backend.h"
#include "accelerator/capture/host_state.h"
#include "accelerator/captured_training.h"
#include "accelerator/core.h"

namespace accelerator_test {

// Does to tensors what a graph does, by running the step, and leaves the host's state unchanged.
class RunAnew final : public accelerant::detail::StepGraph {
 public:
  RunAnew(accelerant::detail::Core& core, std::function<void()> work)
      : core_(core), work_(std::move(work)), at_capture_(core) {}

  // The capture has already run it once.
  void replay() override {
    if (std::exchange(is_first_, false)) return;
    const accelerant::detail::HostState now(core_);
    at_capture_.restore(core_);
    work_();
    now.restore(core_);
  }

 private:
  accelerant::detail::Core& core_;
  std::function<void()> work_;
  accelerant::detail::HostState at_capture_;
  bool is_first_ = true;
};

class RunAnewBackend final : public accelerant::detail::GraphBackend {
 public:
  explicit RunAnewBackend(accelerant::detail::Core& core) : core_(core) {}

  bool needs_steps_on_device() const override { return false; }
  void run_beside(const std::function<void()>& work) override { work(); }
  std::unique_ptr<accelerant::detail::StepGraph> capture(std::function<void()> work) override {
    auto graph = std::make_unique<RunAnew>(core_, work);
    is_capturing = true;
    try {
      work();
    } catch (...) {
      is_capturing = false;
      throw;
    }
    is_capturing = false;
    return graph;
  }

  // True while a step runs for the first time as a graph.
  static inline bool is_capturing = false;

 private:
  accelerant::detail::Core& core_;
};

// Steps that the Accelerator captures from now on get such graphs instead of CUDA's.
inline void run_steps_anew(accelerant::Accelerator& accelerator) {
  using namespace accelerant::detail;
  core_of(accelerator).capture.make_backend = [](Core& core) {
    return BackendChoice{.backend = std::make_unique<RunAnewBackend>(core)};
  };
}

// A training with such graphs.
inline CaptureSetup run_anew(const accelerant::AcceleratorOptions& options = on_cpu()) {
  return {.options = options, .prepare_graphs = run_steps_anew};
}

}  // namespace accelerator_test
