// Keeps the copies of a model that several processes train equal: averages the gradients over the
// processes while backward() runs, and distributes the buffers of rank 0.
//
// An Accelerator creates one for each model it prepares in a run with several processes, and calls
// it around every forward:
//
//   dist::DataParallel parallel(world, parameters, [&] { return net->buffers(); }, {});
//   parallel.before_forward(/*synchronise=*/true);
//   auto output = parallel.after_forward({net->forward(batch)}, /*synchronise=*/true).front();
//   loss_of(output).backward();   // leaves the same gradients in all processes
//   parallel.require_reduced();
//   optimizer.step();
//
// It shares the World and the parameters, and calls the given function to get the buffers. Like the
// World, it must be destroyed before main returns. All processes must do the same things in the
// same order.
//
// The engine is c10d's Reducer (compat/c10d.h), the same as in Python's DDP, so buckets and sums
// are equal. A forward decides whether its backward exchanges; hooks on its outputs notice every
// backward through them. The Accelerator knows from its windows when to exchange
// (ModelState::synchronises), and accelerator/loop/gradient_exchange.h checks that it happened.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerant/dist/data_parallel_options.h"
#include "accelerant/dist/world.h"
#include "accelerant/tensor/named_state.h"

namespace c10d {
class CommHookInterface;
}

namespace accelerant::dist {

// A parameter of the model, trained or frozen.
struct NamedParameter {
  std::string name = {};
  at::Tensor value = {};
  bool sparse_gradient = false;  // its gradients are sparse, as for nn::Embedding with sparse(true)
};

class DataParallel {
 public:
  using Buffers = std::function<std::vector<at::Tensor>()>;

  // Compares the model with those of the other processes, and copies parameters and buffers of rank
  // 0 to all. A tensor with several names counts once. Parameters that are frozen now are not
  // reduced later: unfreezing one is an Error at the next forward. Throws an Error on every process
  // if the models differ, saying where.
  DataParallel(std::shared_ptr<World> world, const std::vector<NamedParameter>& parameters,
               Buffers buffers, const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // Call it before every forward of the model. `synchronise` is false in those iterations of
  // gradient accumulation that only add to the gradients of their own process. Does nothing if
  // gradients are disabled.
  void before_forward(bool synchronise);

  // Call it after every forward with all tensors of the output, and continue with what it returns,
  // in the same order. A synchronised forward makes the next backward() through its outputs average
  // the gradients. Several of them may share one backward() or have one each.
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs, bool synchronise);

  // Makes the next backward() average the gradients even though its forwards were not synchronised.
  void synchronise_next_backward();

  // Whether a backward() that began when preparations() was `before` averaged its gradients.
  int64_t preparations() const;
  bool averages_since(int64_t before) const;

  // Call it before using gradients (to clip them or step). Throws an Error that names the missing
  // gradients if a synchronised iteration left some out.
  void require_reduced();

  // Sets how gradients are exchanged, instead of the options. Call it once, before the first
  // backward. The hook itself divides by the number of processes.
  void register_hook(std::unique_ptr<c10d::CommHookInterface> hook);

  // What resumed training depends on, besides the model itself: which gradients travel together and
  // in which order (with three or more processes, the order of a sum changes its last bits), the
  // uses of parameters in a static graph, and what PowerSGD remembers. Part of it is specific to
  // this process, so each process saves its state. Call it between optimizer.step() and the next
  // forward; throws Error after a backward() that left gradients out.
  //
  //   values   {"buckets": [["fc2.weight", "fc2.bias"], ["fc1.weight"]],
  //                                    in the order of their exchange
  //             "rebuilt": true,       they follow the order of gradients, and are final
  //             "order": [],           of gradients, if the next forward rebuilds the buckets
  //             "views": ["fc1.weight"],
  //                                    gradients that are parts of buckets
  //             "static_graph": {"uses": {"fc2.weight": 1, ...}, "unused": [], "followed": false},
  //                                    if it is known
  //             "comm_hook": {"iteration": 7, ...}}
  //                                    if there is a hook with a memory
  //   tensors  "comm_hook.0.error", "comm_hook.0.q", ...: of PowerSGD, by bucket
  NamedState state_dict() const;

  // Continues like the model that was saved. Call it at any time between two iterations. All
  // processes must load states saved at the same moment, each its own. Exchanges nothing. The
  // tensors are copied.
  //
  // Buckets are the saved ones, whatever bucket_cap_mb is now. Parts that belong to other options
  // are ignored: a static graph, and the memory of another hook if its sizes differ. Throws an
  // Error, without changing anything, if the state has other parameters (by name; trained ones
  // only) or impossible buckets.
  //
  // Gradients are unchanged, except with gradient_as_bucket_view: then those that were views become
  // views of zeros, and the others are removed. (The Reducer divides views and multiplies other
  // gradients by the inverse, which differs in the last bit.)
  void load_state_dict(const NamedState& state);

  // Parameters and buffers of the model, for checks and for averaging manually.
  const std::vector<NamedParameter>& parameters() const;
  World& world() const;
  const DataParallelOptions& options() const;

  struct State;  // internal: src/dist/data_parallel_state.h
  State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

// For exceptions thrown by backward(): throws an Error that says which exchange failed, or which
// parameters break a promise. Rethrows any other exception unchanged.
[[noreturn]] void rethrow_backward_error(const std::vector<DataParallel*>& models,
                                         std::exception_ptr error);

}  // namespace accelerant::dist
