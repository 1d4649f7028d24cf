#include "dist/comm_hook.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>

#include <cmath>
#include <utility>
#include <vector>

#include "accelerant/core/error.h"
#include "dist/compressor.h"
#include "dist/power_sgd.h"

namespace accelerant::dist {
namespace {

// The bucket in another type, summed and cast back. It is divided first, because 16-bit sums might
// overflow.
class CastReduction final : public BucketReduction {
 public:
  CastReduction(const GroupPtr& group, const at::Tensor& buffer, c10::ScalarType dtype)
      : buffer_(buffer),
        compressed_(buffer.to(dtype).div_(group->getSize())),
        work_(all_reduce_sum(group, compressed_)) {}

  at::Tensor finish() override {
    work_->wait();
    // If the type does not change, this is the buffer itself.
    return compressed_.is_same(buffer_) ? buffer_ : buffer_.copy_(compressed_);
  }

 private:
  at::Tensor buffer_;
  at::Tensor compressed_;
  c10::intrusive_ptr<c10d::Work> work_;
};

class CastCompressor final : public Compressor {
 public:
  CastCompressor(GroupPtr group, c10::ScalarType dtype) : group_(std::move(group)), dtype_(dtype) {}

  std::unique_ptr<BucketReduction> start(c10d::GradBucket& bucket) override {
    return std::make_unique<CastReduction>(group_, bucket.getBuffer(), dtype_);
  }

 private:
  GroupPtr group_;
  c10::ScalarType dtype_;
};

// The reduction of another compressor on a bucket that was cast for it.
class WrappedReduction final : public BucketReduction {
 public:
  WrappedReduction(std::unique_ptr<BucketReduction> inner, at::Tensor buffer)
      : inner_(std::move(inner)), buffer_(std::move(buffer)) {}

  void advance() override { inner_->advance(); }
  at::Tensor finish() override { return buffer_.copy_(inner_->finish()); }

 private:
  std::unique_ptr<BucketReduction> inner_;
  at::Tensor buffer_;
};

class WrappedCompressor final : public Compressor {
 public:
  WrappedCompressor(std::unique_ptr<Compressor> inner, c10::ScalarType dtype)
      : inner_(std::move(inner)), dtype_(dtype) {}

  std::unique_ptr<BucketReduction> start(c10d::GradBucket& bucket) override {
    const at::Tensor buffer = bucket.getBuffer();
    at::Tensor cast = buffer.to(dtype_);
    bucket.setBuffer(cast);
    return std::make_unique<WrappedReduction>(inner_->start(bucket), buffer);
  }

  NamedState state_dict() const override { return inner_->state_dict(); }
  void load_state_dict(const NamedState& state) override { inner_->load_state_dict(state); }

 private:
  std::unique_ptr<Compressor> inner_;
  c10::ScalarType dtype_;
};

void require_dense(const at::Tensor& buffer) {
  if (buffer.layout() == c10::kStrided && buffer.is_floating_point()) return;
  throw Error(ErrorDetails{.problem = "A comm hook cannot send these gradients",
                           .expected = "dense gradients of a floating-point type",
                           .got = c10::str(buffer.layout(), " gradients of type ", buffer.dtype()),
                           .hint = "use CommHook::no"});
}

// The Reducer calls runHook for one bucket after another while backward runs, waits for the futures
// at its end, and then calls parseHookResult for each, in the same order. PowerSGD has to exchange
// a second time after the first exchange. Python does so in a callback of the first one's future.
// With Gloo, that runs at any time on Gloo's threads: two buckets can start their exchanges in a
// different order on another process, and block both threads that would have to serve them. Here
// parseHookResult continues, at a time that is the same everywhere; the first exchanges, the large
// ones, still overlap with backward.
class Hook final : public SavedHook {
 public:
  explicit Hook(std::unique_ptr<Compressor> compressor) : compressor_(std::move(compressor)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const Quiet quiet;
    require_dense(bucket.getBuffer());
    if (bucket.getIndex() == 0) {
      running_.clear();  // left over from a failed backward
      advanced_ = false;
    }
    const auto index = static_cast<int64_t>(running_.size());
    running_.push_back(compressor_->start(bucket));
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
    future->markCompleted(c10::IValue(index));
    return future;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    const Quiet quiet;
    if (!std::exchange(advanced_, true)) {
      for (const auto& reduction : running_) reduction->advance();
    }
    const auto reduction = std::move(running_.at(static_cast<size_t>(result.toInt())));
    return reduction->finish();
  }

  NamedState state_dict() const override { return compressor_->state_dict(); }

  void load_state_dict(const NamedState& state) override {
    compressor_->load_state_dict(state);
    running_.clear();
  }

 private:
  // backward may have been called under autocast, or with create_graph.
  struct Quiet {
    at::NoGradGuard no_grad;
    c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  };

  std::unique_ptr<Compressor> compressor_;
  std::vector<std::unique_ptr<BucketReduction>> running_;
  bool advanced_ = false;
};

std::unique_ptr<Compressor> make_compressor(const CommHookOptions& options, const GroupPtr& group) {
  switch (options.hook) {
    case CommHook::no:
      return nullptr;
    case CommHook::fp16:
      return std::make_unique<CastCompressor>(group, c10::kHalf);
    case CommHook::bf16:
      return std::make_unique<CastCompressor>(group, c10::kBFloat16);
    case CommHook::power_sgd:
      return make_power_sgd(options.power_sgd, group);
    case CommHook::batched_power_sgd:
      return make_batched_power_sgd(options.power_sgd, group);
  }
  throw Error(ErrorDetails{.problem = "Unknown comm hook",
                           .got = c10::str(static_cast<int>(options.hook))});
}

void check_power_sgd(const PowerSgdOptions& options) {
  const auto require = [](bool holds, const char* field, const std::string& expected, auto got) {
    if (holds) return;
    throw Error(ErrorDetails{.problem = c10::str("PowerSgdOptions::", field, " is out of range"),
                             .expected = expected,
                             .got = c10::str(got)});
  };
  require(options.matrix_approximation_rank >= 1, "matrix_approximation_rank", "at least 1",
          options.matrix_approximation_rank);
  const bool remembers = options.use_error_feedback || options.warm_start;
  require(options.start_iteration >= (remembers ? 2 : 0), "start_iteration",
          remembers ? "at least 2 with error feedback or a warm start" : "at least 0",
          options.start_iteration);
  require(options.min_compression_rate > 0 && std::isfinite(options.min_compression_rate),
          "min_compression_rate", "more than 0", options.min_compression_rate);
  require(
      options.orthogonalization_epsilon >= 0 && std::isfinite(options.orthogonalization_epsilon),
      "orthogonalization_epsilon", "at least 0", options.orthogonalization_epsilon);
  require(options.random_seed >= 0 && options.random_seed < (int64_t{1} << 32), "random_seed",
          "0 to 2^32 - 1", options.random_seed);
}

}  // namespace

c10::intrusive_ptr<c10d::Work> all_reduce_sum(const GroupPtr& group, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors = {tensor};
  return group->allreduce(tensors);
}

std::unique_ptr<BucketReduction> average(const GroupPtr& group, const at::Tensor& buffer) {
  return std::make_unique<CastReduction>(group, buffer, buffer.scalar_type());
}

void check(const CommHookOptions& options) {
  if (options.hook == CommHook::no && options.wrapper != CommWrapper::no) {
    throw Error(
        ErrorDetails{.problem = "CommHookOptions::wrapper needs a comm hook to wrap",
                     .expected = "a hook, or CommWrapper::no",
                     .got = "CommHook::no",
                     .hint = "to send gradients in 16 bits use CommHook::fp16 or CommHook::bf16"});
  }
  if (options.hook == CommHook::power_sgd || options.hook == CommHook::batched_power_sgd) {
    check_power_sgd(options.power_sgd);
  }
}

std::unique_ptr<SavedHook> make_comm_hook(const CommHookOptions& options, const GroupPtr& group) {
  check(options);
  auto compressor = make_compressor(options, group);
  if (!compressor) return nullptr;
  if (options.wrapper != CommWrapper::no) {
    compressor = std::make_unique<WrappedCompressor>(
        std::move(compressor), options.wrapper == CommWrapper::fp16 ? c10::kHalf : c10::kBFloat16);
  }
  return std::make_unique<Hook>(std::move(compressor));
}

}  // namespace accelerant::dist
