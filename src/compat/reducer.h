// The Reducer of libtorch, whose constructor changes from version to version.
#pragma once

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "compat/torch_version.h"

namespace accelerant::compat {

struct ReducerArguments {
  std::vector<at::Tensor> parameters;
  std::vector<std::vector<size_t>>
      buckets;  // indices of parameters, in the order they are exchanged
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::vector<bool> sparse_gradients;
  int64_t bucket_bytes = 0;
  int64_t first_bucket_bytes = 0;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  std::unordered_map<size_t, std::string> names;
};

// Also tells where an iteration stands, which the Reducer itself keeps for its children.
class Reducer : public c10d::Reducer {
 public:
  explicit Reducer(ReducerArguments a)
      : c10d::Reducer(std::move(a.parameters), std::move(a.buckets), std::move(a.group),
                      std::move(a.sparse_gradients), a.bucket_bytes, a.find_unused_parameters,
                      a.gradient_as_bucket_view, std::move(a.names), a.first_bucket_bytes,
                      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
                      /*bucket_bytes_cap_list=*/{}) {}

  // Remembers the hook, which the Reducer keeps to itself.
  void register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook) {
    c10d::CommHookInterface* registered = hook.get();
    c10d::Reducer::register_comm_hook(std::move(hook));
    hook_ = registered;
  }

  // Ends what run_comm_hook() began, as the Reducer itself does at the end of backward: a hook may exchange
  // more when it is asked for its result. For all buckets, in their order.
  void finish_comm_hook(c10::ivalue::Future& begun) {
    begun.waitAndThrow();
    if (hook_ != nullptr) hook_->parseHookResult(begun.value());
  }

  // From prepare_for_backward() until all gradients are reduced.
  bool is_armed() const {
    const std::lock_guard lock(mutex_);
    return expect_autograd_hooks_;
  }

  // Takes prepare_for_backward() back, before any gradient has come.
  void disarm() {
    const std::lock_guard lock(mutex_);
    expect_autograd_hooks_ = false;
  }

  // Whether rebuild_buckets() would do anything: once, after the first backward.
  bool rebuild_is_due() const {
    const std::lock_guard lock(mutex_);
    return should_rebuild_buckets() && !rebuilt_params_.empty();
  }

  // Notes the order of gradients from the backward that comes now. Two of them before the buckets are made
  // anew would note every parameter twice.
  void note_order_from_here() {
    const std::lock_guard lock(mutex_);
    rebuilt_params_.clear();
    rebuilt_param_indices_.clear();
  }

  // Counts the uses of parameters in a static graph from the backward that comes now. Those before, which
  // were not to be reduced, are counted by the Reducer too, and it would wait for as many later.
  void count_uses_from_here() {
    const std::lock_guard lock(mutex_);
    for (auto& [index, count] : numGradHooksTriggeredMap_) count = 0;
    num_bwd_calls_ = 0;
    first_autograd_hook_called_ = false;
  }

  // Some gradients of the iteration have come, others have not.
  bool is_unfinished() const {
    const std::lock_guard lock(mutex_);
    return require_finalize_;
  }

 private:
  c10d::CommHookInterface* hook_ = nullptr;  // the Reducer's own
};

}  // namespace accelerant::compat
