// What data-parallel training needs of libtorch and its versions have different: a collective,
// nodes of the autograd graph, and the Reducer. Costs as much as c10d's headers, so only few
// sources include it.
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

// Another name since 2.13.
inline c10::intrusive_ptr<c10d::Work> all_gather_single(c10d::ProcessGroup& group,
                                                        at::Tensor& output, at::Tensor& input) {
#if ACCELERANT_TORCH_AT_LEAST(2, 13)
  return group.all_gather_single(output, input);
#else
  return group._allgather_base(output, input);
#endif
}

// Nodes of the autograd graph are held by another kind of pointer since 2.13.
template <class Node>
auto make_node() {
#if ACCELERANT_TORCH_AT_LEAST(2, 13)
  return c10::make_intrusive<Node>();
#else
  return std::shared_ptr<Node>(new Node(), torch::autograd::deleteNode);
#endif
}

// What the constructor of the Reducer takes, which changes from version to version.
struct ReducerArguments {
  std::vector<at::Tensor> parameters;
  // Indices of parameters, in the order they are exchanged.
  std::vector<std::vector<size_t>> buckets;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::vector<bool> sparse_gradients;
  int64_t bucket_bytes = 0;
  int64_t first_bucket_bytes = 0;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  bool batched_grad_copy = false;  // from libtorch 2.12 on
  std::unordered_map<size_t, std::string> names;
};

// What the Reducer has learnt from the iterations there were. Parameters are indices.
struct LearntOrder {
  std::vector<std::vector<size_t>> buckets = {};
  bool is_rebuilt = false;  // into these buckets, which stay
  // Of gradients, from which buckets are to be made before the next forward.
  std::vector<size_t> arrival = {};
};

// Of a static graph, in its first iteration.
struct LearntGraph {
  std::vector<int> uses = {};      // of each parameter in this process
  std::vector<bool> is_used = {};  // each parameter, by any process
};

// The Reducer of libtorch. Also tells where an iteration stands, which the Reducer itself keeps for
// its children.
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

  // Exchanges all buckets at the end of a static graph's first iteration. The Reducer calls each of
  // them the first to the hook then, which is put right here.
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

  // Ends what run_comm_hook() began, as the Reducer itself does at the end of backward: a hook may
  // exchange more when it is asked for its result. For all buckets, in their order.
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

  // Whether rebuild_buckets() will never do anything again.
  bool has_final_buckets() const {
    const std::lock_guard lock(mutex_);
    return !should_rebuild_buckets();
  }

  // Whether gradients are added up there, and then exchanged.
  bool is_on_stream(const c10::Stream& stream) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::all_of(grad_accumulators_,
                               [&](const auto& node) { return node->stream() == stream; });
  }

  // Notes the order of gradients from the backward that comes now. Two of them before the buckets
  // are made anew would note every parameter twice.
  void note_order_from_here() {
    const std::lock_guard lock(mutex_);
    rebuilt_params_.clear();
    rebuilt_param_indices_.clear();
  }

  // Counts the uses of parameters in a static graph from the backward that comes now. Those before,
  // which were not to be reduced, are counted by the Reducer too, and it would wait for as many
  // later.
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

  // For a Reducer that was made with the buckets.
  void restore_order(const LearntOrder& learnt) {
    const std::lock_guard lock(mutex_);
    has_rebuilt_bucket_ = learnt.is_rebuilt;
    for (const size_t index : learnt.arrival) push_rebuilt_params(index);
  }

  // Parameters whose gradients are parts of buckets. The Reducer divides these; others it
  // multiplies by the inverse, unless it copies them in batches, which it divides as a whole.
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
      // Where a parameter is unused in this process, what the others said has been waited for.
      learnt.is_used.push_back(local_used_map_[static_cast<int64_t>(i)].item<int>() != 0);
    }
    return learnt;
  }

  // For a Reducer of a static graph that has had no iteration yet: its first is done.
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
