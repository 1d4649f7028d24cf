#include "accelerator/capture/graph_backend.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "accelerator/core.h"
#include "compat/cuda_graph.h"
#include "compat/device.h"
#include "dist/captured_exchange.h"

namespace accelerant::detail {
namespace {

// Shared by the backend and its graphs, which may be destroyed in any order. All steps use the same
// streams, since exchanged gradients arrive on one stream.
struct CaptureStreams {
  // torch hands out the streams of a pool in turn, so other code may get the same stream, and its
  // work must not end up in a capture. The high-priority pool is rarely used.
  explicit CaptureStreams(c10::Device on)
      : device(on),
        guard(on.type()),
        side(guard.getStreamFromGlobalPool(on, /*isHighPriority=*/true)) {}

  c10::Stream current() const { return guard.getStream(device); }

  c10::Device device;
  c10::impl::VirtualGuardImpl guard;
  c10::Stream side;
};

void wait_for(const c10::Stream& waiting, const c10::Stream& other) {
  c10::Event event(other.device_type());
  event.record(other);
  event.block(waiting);
}

class CudaStepGraph final : public StepGraph {
 public:
  CudaStepGraph(std::unique_ptr<compat::CudaGraph> graph, std::shared_ptr<compat::GraphPool> pool,
                std::shared_ptr<const CaptureStreams> streams)
      : graph_(std::move(graph)), pool_(std::move(pool)), streams_(std::move(streams)) {}

  // Replays on other streams also use memory of the side stream. So work that is ordered after the
  // side stream must also come after them.
  void replay() override {
    graph_->replay();
    wait_for(streams_->side, streams_->current());
  }

 private:
  std::unique_ptr<compat::CudaGraph> graph_;
  std::shared_ptr<compat::GraphPool> pool_;
  std::shared_ptr<const CaptureStreams> streams_;
};

class CudaBackend final : public GraphBackend {
 public:
  explicit CudaBackend(std::shared_ptr<const CaptureStreams> streams)
      : streams_(std::move(streams)) {}

  bool needs_steps_on_device() const override { return true; }
  std::optional<c10::Stream> stream() const override { return streams_->side; }

  void run_beside(const std::function<void()>& work) override {
    const c10::Stream program = streams_->current();
    wait_for(streams_->side, program);
    try {
      const c10::StreamGuard guard(streams_->side);
      work();
    } catch (...) {
      wait_for(program, streams_->side);
      throw;
    }
    wait_for(program, streams_->side);
  }

  void wait() const override { streams_->guard.synchronizeDevice(streams_->device.index()); }

  std::unique_ptr<StepGraph> capture(std::function<void()> work) override {
    wait();  // a capture must not query events of memory from the warm-up
    // Memory that the warm-up has cached for its stream is of no other use.
    compat::empty_device_cache();
    // torch frees a pool with its last graph; it cannot be used after that.
    auto pool = pool_.lock();
    if (!pool) pool_ = pool = std::make_shared<compat::GraphPool>(compat::new_graph_pool());
    const c10::StreamGuard guard(streams_->side);
    return std::make_unique<CudaStepGraph>(compat::CudaGraph::capture(*pool, work), pool, streams_);
  }

 private:
  std::shared_ptr<const CaptureStreams> streams_;
  std::weak_ptr<compat::GraphPool> pool_;  // of the living graphs
};

std::string why_no_graphs(const Core& core) {
  const c10::Device device = *core.options.device;
  if (!device.is_cuda()) return "CUDA graphs need a CUDA device, not " + device.str();
  if (!compat::has_cuda_graphs()) return "this build of Accelerant has no CUDA support";
  if (core.world->is_connected() && !dist::exchanges_on_device(*core.world)) {
    return "gradients are exchanged by Gloo, on the host";
  }
  return {};
}

}  // namespace

MakeBackend cuda_graphs() {
  return [streams = std::shared_ptr<const CaptureStreams>()](Core& core) mutable -> BackendChoice {
    if (std::string reason = why_no_graphs(core); !reason.empty()) return {.why_not = reason};
    if (!streams) streams = std::make_shared<CaptureStreams>(*core.options.device);
    return {.backend = std::make_unique<CudaBackend>(streams)};
  };
}

}  // namespace accelerant::detail
