#include "accelerant/dist/sync_batch_norm.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>

#include <optional>
#include <ostream>

#include "accelerant/core/error.h"
#include "accelerant/dist/world.h"
#include "dist/batch_statistics.h"

namespace accelerant::dist {
namespace {

void check_input(const at::Tensor& input, int64_t num_features) {
  if (input.dim() >= 2 && input.size(1) == num_features && num_features > 0) return;
  throw Error(ErrorDetails{.problem = "The input of SyncBatchNorm has the wrong shape",
                           .expected = c10::str("(N, ", num_features, ", ...)"),
                           .got = c10::str(input.sizes())});
}

[[noreturn]] void throw_too_few_values(const at::Tensor& input) {
  throw Error(ErrorDetails{.problem = "Too few values per channel to train with",
                           .expected = "more than 1 over all processes",
                           .got = c10::str("input of size ", input.sizes())});
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_,
                                     const std::shared_ptr<World>& world)
    : options(options_) {
  SyncBatchNormImpl::reset();
  set_world(world);
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_,
                                     const Tensors& tensors, bool training,
                                     const std::shared_ptr<World>& world)
    : options(options_) {
  register_tensors(tensors);
  train(training);
  set_world(world);
}

void SyncBatchNormImpl::register_tensors(const Tensors& tensors) {
  const auto parameter = [&](const char* name, const at::Tensor& tensor) {
    const bool requires_grad = tensor.defined() && tensor.requires_grad();
    return register_parameter(name, tensor, requires_grad);
  };
  weight = parameter("weight", tensors.weight);
  bias = parameter("bias", tensors.bias);
  running_mean = register_buffer("running_mean", tensors.running_mean);
  running_var = register_buffer("running_var", tensors.running_var);
  num_batches_tracked = register_buffer("num_batches_tracked", tensors.num_batches_tracked);
}

void SyncBatchNormImpl::reset() {
  const int64_t channels = options.num_features();
  Tensors tensors;
  if (options.affine()) {
    tensors.weight = at::ones({channels}).set_requires_grad(true);
    tensors.bias = at::zeros({channels}).set_requires_grad(true);
  }
  if (options.track_running_stats()) {
    tensors.running_mean = at::zeros({channels});
    tensors.running_var = at::ones({channels});
    tensors.num_batches_tracked = at::zeros({}, at::kLong);
  }
  register_tensors(tensors);
}

void SyncBatchNormImpl::reset_parameters() {
  reset_running_stats();
  const at::NoGradGuard no_grad;
  if (weight.defined()) weight.fill_(1);
  if (bias.defined()) bias.zero_();
}

void SyncBatchNormImpl::reset_running_stats() {
  if (!running_mean.defined()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "accelerant::dist::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ")";
}

void SyncBatchNormImpl::set_world(const std::shared_ptr<World>& world) {
  has_world_ = world != nullptr;
  world_ = world;
}

std::shared_ptr<World> SyncBatchNormImpl::world_to_train_with() const {
  if (!has_world_ || !is_training()) return nullptr;
  const auto world = world_.lock();
  if (!world) {
    throw Error(ErrorDetails{.problem = "SyncBatchNorm cannot train without its World",
                             .expected = "the World that was set",
                             .got = "a World that has ended",
                             .hint = "keep the Accelerator or the World alive while training"});
  }
  const bool is_alone = world->size() == 1 && !world->is_connected();
  return is_alone ? nullptr : world;
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check_input(input, options.num_features());
  if (is_training() && num_batches_tracked.defined()) num_batches_tracked.add_(1);
  if (const auto world = world_to_train_with()) return normalize_together(input, *world, world);
  return normalize_alone(input);
}

at::Tensor SyncBatchNormImpl::normalize_alone(const at::Tensor& input) {
  const bool uses_batch = is_training() || !running_mean.defined();
  if (uses_batch && input.numel() == input.size(1)) throw_too_few_values(input);
  double momentum = options.momentum().value_or(0);
  if (is_training() && num_batches_tracked.defined() && !options.momentum()) {
    momentum = 1.0 / num_batches_tracked.item<double>();
  }
  return at::batch_norm(input, weight, bias, running_mean, running_var, uses_batch, momentum,
                        options.eps(), at::globalContext().userEnabledCuDNN());
}

at::Tensor SyncBatchNormImpl::normalize_together(const at::Tensor& input, const World& world,
                                                 const std::weak_ptr<World>& world_for_backward) {
  BatchStatistics statistics;
  {
    const at::NoGradGuard no_grad;
    statistics = gather_statistics(world, input);
    // On a GPU this check would wait for the device.
    if (input.is_cpu() && statistics.total.item<double>() < 2) throw_too_few_values(input);
    if (running_mean.defined()) {
      // 1 / num_batches_tracked is computed on its device, without waiting for it either.
      const at::Tensor share = options.momentum()
                                   ? at::full({1}, *options.momentum(), running_mean.options())
                                   : num_batches_tracked.to(running_mean.dtype()).reciprocal();
      const at::Tensor unbiased =
          statistics.var.mul(statistics.total).div_(statistics.total.sub(1).clamp_min(1));
      const auto move = [&](at::Tensor& running, const at::Tensor& value) {
        running.lerp_(value.to(running.dtype()), share);
      };
      move(running_mean, statistics.mean);
      move(running_var, unbiased);
    }
  }
  return normalize(world_for_backward, input, weight, bias, statistics, options.eps());
}

}  // namespace accelerant::dist
