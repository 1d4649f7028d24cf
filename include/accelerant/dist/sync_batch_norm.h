// Batch normalisation whose training statistics cover the batches of all processes, like
// torch.nn.SyncBatchNorm, but also on CPUs.
//
//   struct NetImpl : torch::nn::Module {
//     ...
//     dist::SyncBatchNorm norm{register_module("norm", dist::SyncBatchNorm(64))};
//   };
//   dist::connect_sync_batch_norms(*net, world);   // Accelerator::prepare does this
//
// For input of any shape (N, C, ...). The number of rows may differ between processes, and may be
// 0. Parameters, buffers and their names are those of torch::nn::BatchNorm1d to 3d. Without a
// World, or in one process, it is plain batch normalisation; eval mode never exchanges anything. In
// training, all processes must call it equally often and in the same order. Statistics are float32
// for 16-bit input. Second derivatives are an Error.
//
// A module does not keep its World alive: training after the World has ended is an Error.
//
// This header needs torch::nn::Module and so takes almost as long to compile as torch/torch.h:
// accelerant.h does not include it.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <memory>

namespace accelerant::dist {

class World;

class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  // The options are those of torch::nn::BatchNorm: num_features, eps (1e-5), momentum (0.1; nullopt
  // for the plain mean over all batches so far), affine (true), track_running_stats (true).
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             const std::shared_ptr<World>& world = nullptr);

  // Shares the tensors of a torch::nn::BatchNorm1d to 3d, so an optimizer that holds them stays
  // valid.
  template <class BatchNormImpl>
  static std::shared_ptr<SyncBatchNormImpl> sharing(const BatchNormImpl& original,
                                                    const std::shared_ptr<World>& world);

  at::Tensor forward(const at::Tensor& input);

  // The processes to work with from now on; nullptr: this process alone.
  void set_world(const std::shared_ptr<World>& world);

  void reset() override;
  void reset_parameters();
  void reset_running_stats();
  void pretty_print(std::ostream& stream) const override;

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;  // undefined without `affine`
  at::Tensor running_mean, running_var,
      num_batches_tracked;  // undefined without `track_running_stats`

 private:
  struct Tensors {
    at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
  };

  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options, const Tensors& tensors,
                    bool training, const std::shared_ptr<World>& world);

  void register_tensors(const Tensors& tensors);
  std::shared_ptr<World> world_to_train_with() const;
  at::Tensor normalize_alone(const at::Tensor& input);
  at::Tensor normalize_together(const at::Tensor& input, const World& world,
                                const std::weak_ptr<World>& world_for_backward);

  bool has_world_ = false;
  std::weak_ptr<World> world_;
};
TORCH_MODULE(SyncBatchNorm);

template <class BatchNormImpl>
std::shared_ptr<SyncBatchNormImpl> SyncBatchNormImpl::sharing(const BatchNormImpl& original,
                                                              const std::shared_ptr<World>& world) {
  return std::shared_ptr<SyncBatchNormImpl>(
      new SyncBatchNormImpl(original.options,
                            {original.weight, original.bias, original.running_mean,
                             original.running_var, original.num_batches_tracked},
                            original.is_training(), world));
}

// Sets the World of every SyncBatchNorm in a module. Returns how many there are.
int64_t connect_sync_batch_norms(torch::nn::Module& module, const std::shared_ptr<World>& world);

// Replaces every BatchNorm1d, 2d and 3d in a module by a SyncBatchNorm with the same tensors, and
// connects existing ones. Returns how many were replaced.
//
// It can reach modules inside libtorch's containers at any depth: torch::nn::Sequential, ModuleList
// and ModuleDict. It cannot reach a member such as `torch::nn::BatchNorm2d norm`: such a member
// keeps its module and its type, whatever is registered in its place. If there is one, nothing
// changes and an Error names it; declare it as `SyncBatchNorm norm` instead. Pointers to a replaced
// module that the program kept still refer to the old one.
//
// Without a World, Accelerator::prepare connects them.
int64_t convert_sync_batchnorm(torch::nn::Module& module,
                               const std::shared_ptr<World>& world = nullptr);

}  // namespace accelerant::dist
