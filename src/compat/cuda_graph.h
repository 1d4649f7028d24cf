// A CUDA graph, without CUDA's headers. Exists in every build; if has_cuda_graphs() is false,
// everything else throws.
//
//   const GraphPool pool = new_graph_pool();
//   auto graph = CudaGraph::capture(pool, [&] { ... });  // records the work without running it
//   graph->replay();                                     // queues it on the current stream
#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace accelerant::compat {

// Whether this build has CUDA and the machine has a device.
bool has_cuda_graphs();

// Names a pool of device memory, shared by graphs that never run at the same time.
using GraphPool = std::pair<unsigned long long, unsigned long long>;
GraphPool new_graph_pool();

class CudaGraph {
 public:
  // Records what `work` queues on the current stream of this thread, which must not be the default
  // stream; this includes backward passes that autograd runs in its own threads. Other threads and
  // streams are not affected. The default generator gives new random numbers in each replay. If
  // `work` throws or does something that cannot be captured, stream, allocators and generator are
  // restored, and the exception is rethrown.
  static std::unique_ptr<CudaGraph> capture(const GraphPool& pool,
                                            const std::function<void()>& work);

  ~CudaGraph();
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  // Does not wait for the device.
  void replay();

 private:
  struct Impl;

  explicit CudaGraph(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace accelerant::compat
