// What data-parallel training needs from libtorch and differs between its versions: a collective,
// nodes of the autograd graph, and the Reducer. Including it costs as much as c10d's headers, so
// only few sources do.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "compat/torch_version.h"

namespace accelerant::compat {

// Renamed in 2.13.
inline c10::intrusive_ptr<c10d::Work> all_gather_single(c10d::ProcessGroup& group,
                                                        at::Tensor& output, at::Tensor& input) {
#if ACCELERANT_TORCH_AT_LEAST(2, 13)
  return group.all_gather_single(output, input);
#else
  return group._allgather_base(output, input);
#endif
}

// Since 2.13, a different kind of pointer holds nodes of the autograd graph.
template <class Node>
auto make_node() {
#if ACCELERANT_TORCH_AT_LEAST(2, 13)
  return c10::make_intrusive<Node>();
#else
  return std::shared_ptr<Node>(new Node(), torch::autograd::deleteNode);
#endif
}

// The arguments of the Reducer's constructor, which changes from version to version.
struct ReducerArguments {
  std::vector<at::Tensor> parameters;
  // Indices of parameters, in the order in which they are exchanged.
  std::vector<std::vector<size_t>> buckets;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::vector<bool> sparse_gradients;
  int64_t bucket_bytes = 0;
  int64_t first_bucket_bytes = 0;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool batched_grad_copy = false;  // since libtorch 2.12
  std::unordered_map<size_t, std::string> names;
};

// What the Reducer has learnt from past iterations. Parameters are given by index.
struct LearntOrder {
  std::vector<std::vector<size_t>> buckets = {};
  bool is_rebuilt = false;  // the buckets are final
  // The order in which gradients arrived; buckets are built from it before the next forward.
  std::vector<size_t> arrival = {};
};

// What the first iteration of a static graph has shown.
struct LearntGraph {
  std::vector<int> uses = {};      // uses of each parameter in this process
  std::vector<bool> is_used = {};  // whether any process uses each parameter
};

// libtorch's Reducer, which also exposes the state of an iteration that the base class keeps
// protected.
class Reducer : public c10d::Reducer {
 public:
  explicit Reducer(ReducerArguments a)
      : c10d::Reducer(std::move(a.parameters), std::move(a.buckets), std::move(a.group),
                      std::move(a.sparse_gradients), a.bucket_bytes, a.find_unused_parameters,
                      a.gradient_as_bucket_view, std::move(a.names), a.first_bucket_bytes,
                      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
                      /*bucket_bytes_cap_list=*/{}
#if ACCELERANT_TORCH_AT_LEAST(2, 12)
                      ,
                      a.batched_grad_copy
#endif
        ) {
  }

  // Shares the hook, which may outlive this Reducer.
  void register_comm_hook(const std::shared_ptr<c10d::CommHookInterface>& hook) {
    c10d::Reducer::register_comm_hook(std::make_unique<SharedHook>(hook, *this));
    hook_ = hook;
  }

  // Exchanges all buckets at the end of a static graph's first iteration. The base class tells the
  // hook that each of them is the first bucket; this corrects the index.
  void delay_all_reduce() {
    delayed_ = 0;
    try {
      c10d::Reducer::delay_all_reduce();
    } catch (...) {
      delayed_.reset();
      throw;
    }
    delayed_.reset();
  }

  // Finishes what run_comm_hook() began, as the Reducer itself does at the end of backward: a hook
  // may exchange more when asked for its result. Call it for all buckets, in order.
  void finish_comm_hook(c10::ivalue::Future& begun) {
    begun.waitAndThrow();
    if (hook_ != nullptr) hook_->parseHookResult(begun.value());
  }

  // True from prepare_for_backward() until all gradients are reduced.
  bool is_armed() const {
    const std::lock_guard lock(mutex_);
    return expect_autograd_hooks_;
  }

  // Undoes prepare_for_backward(), before any gradient has arrived.
  void disarm() {
    const std::lock_guard lock(mutex_);
    expect_autograd_hooks_ = false;
  }

  // Whether rebuild_buckets() would do anything, which it does once, after the first backward.
  bool rebuild_is_due() const {
    const std::lock_guard lock(mutex_);
    return should_rebuild_buckets() && !rebuilt_params_.empty();
  }

  // Whether rebuild_buckets() will never do anything again.
  bool has_final_buckets() const {
    const std::lock_guard lock(mutex_);
    return !should_rebuild_buckets();
  }

  // Whether gradients are accumulated, and then exchanged, on this stream.
  bool is_on_stream(const c10::Stream& stream) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::all_of(grad_accumulators_,
                               [&](const auto& node) { return node->stream() == stream; });
  }

  // Starts recording the order of gradients with the next backward. Two backwards before the
  // buckets are rebuilt would record every parameter twice.
  void note_order_from_here() {
    const std::lock_guard lock(mutex_);
    rebuilt_params_.clear();
    rebuilt_param_indices_.clear();
  }

  // Starts counting the uses of parameters in a static graph with the next backward. The Reducer
  // also counts earlier backwards that were not to be reduced, and would later wait for as many.
  void count_uses_from_here() {
    const std::lock_guard lock(mutex_);
    for (auto& [index, count] : numGradHooksTriggeredMap_) count = 0;
    num_bwd_calls_ = 0;
    first_autograd_hook_called_ = false;
  }

  // Some gradients of the iteration have arrived, others have not.
  bool is_unfinished() const {
    const std::lock_guard lock(mutex_);
    return require_finalize_;
  }

  LearntOrder learnt_order() const {
    const std::lock_guard lock(mutex_);
    LearntOrder learnt{.is_rebuilt = has_rebuilt_bucket_};
    for (const Bucket& bucket : buckets_) learnt.buckets.push_back(bucket.variable_indices);
    if (should_rebuild_buckets()) {
      for (const int64_t index : rebuilt_param_indices_) {
        learnt.arrival.push_back(static_cast<size_t>(index));
      }
    }
    return learnt;
  }

  // For a Reducer that was created with these buckets.
  void restore_order(const LearntOrder& learnt) {
    const std::lock_guard lock(mutex_);
    has_rebuilt_bucket_ = learnt.is_rebuilt;
    for (const size_t index : learnt.arrival) push_rebuilt_params(index);
  }

  // Parameters whose gradients are parts of buckets. The Reducer divides these. It multiplies other
  // gradients by the inverse, unless it copies them in batches, which it divides as a whole.
  std::vector<size_t> gradients_in_buckets() const {
    const std::lock_guard lock(mutex_);
    std::vector<size_t> found;
    for (const Bucket& bucket : buckets_) {
      for (size_t i = 0; i < bucket.bucket_views_in.size(); ++i) {
        const at::Tensor& gradient = bucket.variables[i].grad();
        if (gradient.defined() && gradient.is_alias_of(bucket.bucket_views_in[i])) {
          found.push_back(bucket.variable_indices[i]);
        }
      }
    }
    return found;
  }

  LearntGraph learnt_graph() const {
    const std::lock_guard lock(mutex_);
    LearntGraph learnt;
    for (size_t i = 0; i < params_.size(); ++i) {
      const auto uses = numGradHooksTriggeredMap_.find(i);
      learnt.uses.push_back(uses == numGradHooksTriggeredMap_.end() ? 0 : uses->second);
      // If a parameter is unused in this process, the Reducer has already waited for the other
      // processes' answers.
      learnt.is_used.push_back(local_used_map_[static_cast<int64_t>(i)].item<int>() != 0);
    }
    return learnt;
  }

  // For a Reducer of a static graph before its first iteration: marks the first iteration as done.
  void restore_graph(const LearntGraph& learnt) {
    const std::lock_guard lock(mutex_);
    unused_parameters_.clear();
    for (size_t i = 0; i < params_.size(); ++i) {
      numGradHooksTriggeredMap_[i] = learnt.uses[i];
      if (learnt.uses[i] == 0) unused_parameters_.push_back(i);
      local_used_map_[static_cast<int64_t>(i)].fill_(learnt.is_used[i] ? 1 : 0);
    }
    local_used_map_reduced_ = true;
    num_iterations_ = 1;
    num_bwd_calls_ = 1;
  }

 private:
  class SharedHook final : public c10d::CommHookInterface {
   public:
    SharedHook(std::shared_ptr<c10d::CommHookInterface> hook, Reducer& reducer)
        : hook_(std::move(hook)), reducer_(reducer) {}

    c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
      if (!reducer_.delayed_) return hook_->runHook(bucket);
      c10d::GradBucket delayed = reducer_.bucket_at((*reducer_.delayed_)++);
      return hook_->runHook(delayed);
    }

    at::Tensor parseHookResult(const c10::IValue& result) override {
      return hook_->parseHookResult(result);
    }

   private:
    std::shared_ptr<c10d::CommHookInterface> hook_;
    Reducer& reducer_;  // which owns this
  };

  c10d::GradBucket bucket_at(size_t index) const {
    const Bucket& bucket = buckets_.at(index);
    return c10d::GradBucket(index, buckets_.size(), bucket.gradients, bucket.offsets,
                            bucket.lengths, bucket.sizes_vec, bucket.variables,
                            bucket.sparse_tensor_indices);
  }

  std::optional<size_t> delayed_ = std::nullopt;  // the next bucket in delay_all_reduce()

  std::shared_ptr<c10d::CommHookInterface> hook_;
};

}  // namespace accelerant::compat
