#include "compat/cuda_graph.h"

#include "accelerant/core/error.h"
#include "compat/device.h"

#if defined(ACCELERANT_WITH_CUDA)
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#endif

namespace accelerant::compat {

#if defined(ACCELERANT_WITH_CUDA)

namespace {

// Returns false if it has not begun, or has already ended.
bool succeeds(const std::function<void()>& end) {
  try {
    end();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Up to torch 2.12 a generator has its own flag, and refuses to work while it is set.
template <class State>
void end_capture_of(State& generator) {
  if constexpr (requires { generator.capturing_; }) generator.capturing_ = false;
}

}  // namespace

// Extends torch's class, which leaves the allocator and the generator in the middle of a capture
// when it fails.
struct CudaGraph::Impl : at::cuda::CUDAGraph {
  bool is_valid() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(capture_stream_, &status) == cudaSuccess &&
           status == cudaStreamCaptureStatusActive;
  }

  // Call it after a failure anywhere from capture_begin() to the end of capture_end().
  void give_up(bool has_begun) {
    cudaGraph_t captured = nullptr;
    if (cudaStreamEndCapture(capture_stream_, &captured) == cudaSuccess && captured != nullptr) {
      C10_CUDA_CHECK_WARN(cudaGraphDestroy(captured));
    }
    cudaGetLastError();  // clears the stream's error, which the next call would report
    const bool has_pool = succeeds(
        [&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(capture_dev_, mempool_id_); });
    succeeds([&] { at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(mempool_id_); });
    for (auto& [generator, increment] : captured_generator_states_) end_capture_of(*generator);
    if (has_begun || has_pool) capture_ended_ = true;  // so that reset() releases it
  }
};

bool has_cuda_graphs() { return is_present(c10::DeviceType::CUDA); }

GraphPool new_graph_pool() { return at::cuda::graph_pool_handle(); }

std::unique_ptr<CudaGraph> CudaGraph::capture(const GraphPool& pool,
                                              const std::function<void()>& work) {
  auto impl = std::make_unique<Impl>();
  Impl& graph = *impl;
  bool has_begun = false;
  try {
    graph.capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    has_begun = true;
    work();
    if (!graph.is_valid()) {
      throw Error("The capture failed: a CUDA graph cannot contain one of the operations",
                  "look for operations that wait for the device, such as item()");
    }
    graph.capture_end();
  } catch (...) {
    graph.give_up(has_begun);
    throw;
  }
  return std::unique_ptr<CudaGraph>(new CudaGraph(std::move(impl)));
}

void CudaGraph::replay() { impl_->replay(); }

#else

struct CudaGraph::Impl {};

namespace {

[[noreturn]] void refuse() { throw Error("This build of Accelerant does not support CUDA graphs"); }

}  // namespace

bool has_cuda_graphs() { return false; }
GraphPool new_graph_pool() { refuse(); }

std::unique_ptr<CudaGraph> CudaGraph::capture(const GraphPool&, const std::function<void()>&) {
  refuse();
}

void CudaGraph::replay() { refuse(); }

#endif

CudaGraph::CudaGraph(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CudaGraph::~CudaGraph() = default;

}  // namespace accelerant::compat
