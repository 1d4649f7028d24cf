// A CUDA graph, without CUDA's headers. Exists in every build; where has_cuda_graphs() is false the
// rest throws.
//
//   const GraphPool pool = new_graph_pool();
//   auto graph = CudaGraph::capture(pool, [&] { ... });  // queues nothing, remembers everything
//   graph->replay();                                     // queues it on the current stream
#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace accelerant::compat {

// Whether this build has CUDA, and the machine a device.
bool has_cuda_graphs();

// Names a pool of device memory that graphs share which never run at the same time.
using GraphPool = std::pair<unsigned long long, unsigned long long>;
GraphPool new_graph_pool();

class CudaGraph {
 public:
  // Remembers what `work` queues on the current stream of this thread, which must not be the
  // default one; backwards that autograd runs in threads of its own belong to it. Other threads and
  // streams go on as usual. Random numbers of the default generator are new ones in each replay. If
  // work throws or does what cannot be captured, stream, allocators and generator are as before,
  // and the exception is passed on.
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
