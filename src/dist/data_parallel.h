// Keeps the copies of a model that several processes train equal: averages the gradients over the
// processes while backward() runs, and hands on the buffers of rank 0.
//
// An Accelerator makes one for each model it prepares in a run of several processes, and calls it
// around every forward:
//
//   dist::DataParallel parallel(world, parameters, [&] { return net->buffers(); }, {});
//   parallel.before_forward(/*synchronise=*/true);
//   auto output = parallel.after_forward({net->forward(batch)}, /*synchronise=*/true).front();
//   loss_of(output).backward();   // leaves the same gradients in all processes
//   parallel.require_reduced();
//   optimizer.step();
//
// It shares the World and the parameters, and calls the function it was given for the buffers. It
// must end before main returns, as the World must. All processes must do the same things in the
// same order.
//
// The engine is c10d's Reducer (compat/c10d.h), that of Python's DDP, so buckets and sums are the
// same. A forward decides whether its backward exchanges; hooks on its outputs notice every
// backward that comes through them. When to exchange, the Accelerator knows from its windows
// (ModelState::synchronises), and accelerator/loop/gradient_exchange.h checks that it has happened.
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

// A parameter of the model, whether it is trained or frozen.
struct NamedParameter {
  std::string name = {};
  at::Tensor value = {};
  bool sparse_gradient =
      false;  // its gradients are sparse tensors, as those of nn::Embedding with sparse(true)
};

class DataParallel {
 public:
  using Buffers = std::function<std::vector<at::Tensor>()>;

  // Compares the model with those of the other processes, and copies parameters and buffers of rank
  // 0 to all. A tensor that is there under several names counts once. Parameters that are frozen
  // now are not reduced later: unfreezing one is an Error at the next forward. Throws Error on
  // every process if the models differ, saying where.
  DataParallel(std::shared_ptr<World> world, const std::vector<NamedParameter>& parameters,
               Buffers buffers, const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // Before every forward of the model. `synchronise` is false in the iterations of gradient
  // accumulation that only add to the gradients of their own process. Does nothing where gradients
  // are disabled.
  void before_forward(bool synchronise);

  // After every forward, with all tensors of the output; goes on with what it returns, in the same
  // order. A synchronised forward makes the next backward() through its outputs average the
  // gradients. Several of them may end in one backward() or have one each.
  std::vector<at::Tensor> after_forward(std::vector<at::Tensor> outputs, bool synchronise);

  // Makes the next backward() average the gradients although its forwards were not synchronised.
  void synchronise_next_backward();

  // Whether a backward() that began when preparations() was `before` averaged the gradients it
  // made.
  int64_t preparations() const;
  bool averages_since(int64_t before) const;

  // Before gradients are used (clipped, stepped with): an Error if an iteration that was to be
  // synchronised left some out, which names them.
  void require_reduced();

  // How gradients are exchanged, in place of what the options say. Once, before the first backward.
  // The hook divides by the number of processes itself.
  void register_hook(std::unique_ptr<c10d::CommHookInterface> hook);

  // What a training that goes on depends on, besides the model itself: which gradients travel
  // together and in which order (with three or more processes the order of a sum changes its last
  // bits), the uses of parameters in a static graph, and what PowerSGD remembers. Part of it is
  // this process's own, so each process saves its state. Between optimizer.step() and the next
  // forward; an Error after a backward() that left gradients out.
  //
  //   values   {"buckets": [["fc2.weight", "fc2.bias"], ["fc1.weight"]],   in the order of their exchange
  //             "rebuilt": true,                     they follow the order of gradients, and stay as they are
  //             "order": [],                         of gradients, if buckets are to follow it from the next forward
  //             "views": ["fc1.weight"],             gradients that are parts of buckets, with gradient_as_bucket_view
  //             "static_graph": {"uses": {"fc2.weight": 1, ...}, "unused": [], "followed": false},   where it is known
  //             "comm_hook": {"iteration": 7, ...}}  where there is one with a memory
  //   tensors  "comm_hook.0.error", "comm_hook.0.q", ...: of PowerSGD, by bucket
  NamedState state_dict() const;

  // Goes on as the model that was saved. At any time between two iterations; all processes must
  // load what was saved at one moment, each what it has saved itself. Exchanges nothing. The
  // tensors are copied.
  //
  // Buckets are the saved ones whatever bucket_cap_mb is now. What belongs to other options is left
  // out: a static graph, and the memory of another hook as far as it has other sizes. A state of
  // other parameters (by name; trained ones only) or buckets that cannot be is an Error which names
  // them, and nothing is changed.
  //
  // Gradients stay as they are, except with gradient_as_bucket_view: then those that were views
  // become views of zeros, and the others are removed. (The Reducer divides views and multiplies
  // other gradients by the inverse, which is not the same in the last bit.)
  void load_state_dict(const NamedState& state);

  // Parameters and buffers of the model, for checks and for averaging by hand.
  const std::vector<NamedParameter>& parameters() const;
  World& world() const;
  const DataParallelOptions& options() const;

  struct State;  // internal: src/dist/data_parallel_state.h
  State& state() const { return *state_; }

 private:
  std::shared_ptr<State> state_;
};

// For what backward() threw: says in an Error which exchange failed, or which parameters do not fit
// what was promised. Any other exception goes on as it is.
[[noreturn]] void rethrow_backward_error(const std::vector<DataParallel*>& models,
                                         std::exception_ptr error);

}  // namespace accelerant::dist
