#include "dist/batch_statistics.h"

#include <ATen/ops/batch_norm_backward_elemt.h>
#include <ATen/ops/batch_norm_backward_reduce.h>
#include <ATen/ops/batch_norm_elemt.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "accelerant/core/error.h"
#include "dist/transport.h"

namespace accelerant::dist {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

c10::ScalarType statistics_type(const at::Tensor& input) {
  return input.scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat;
}

// One value per channel, in a shape that broadcasts to the input.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

at::Tensor sum_over_channels(const at::Tensor& tensor) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  return tensor.sum(dims);
}

// torch's CUDA kernels take the tensor as it is only if it is dense in one of these orders.
at::Tensor dense(const at::Tensor& tensor) {
  const bool is_channels_last = tensor.is_contiguous(at::MemoryFormat::ChannelsLast) ||
                                tensor.is_contiguous(at::MemoryFormat::ChannelsLast3d);
  return is_channels_last ? tensor : tensor.contiguous();
}

std::pair<at::Tensor, at::Tensor> local_mean_and_var(const at::Tensor& input) {
  // On a CPU, the statistics of 16-bit input would be 16-bit.
  const at::Tensor values = input.is_cpu() ? input.to(statistics_type(input)) : dense(input);
  const auto [mean, var] = at::batch_norm_update_stats(values, {}, {}, 0);
  return {mean, var};
}

at::Tensor inverse_deviation(const at::Tensor& var, double eps) { return var.add(eps).rsqrt(); }

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// Keeps the World for backward without keeping it alive.
struct WorldHolder : torch::CustomClassHolder {
  explicit WorldHolder(std::weak_ptr<World> w) : world(std::move(w)) {}
  std::weak_ptr<World> world;
};

struct Gradients {
  at::Tensor sum_dy, sum_dy_xmu;  // of this process, per channel
  at::Tensor weight, bias;
};

Gradients reduce_gradients(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& mean, const at::Tensor& inverse) {
  if (input.numel() == 0) {
    const at::Tensor none = at::zeros_like(mean);
    return {none, none, none, none};
  }
  if (!input.is_cpu()) {
    auto [sum_dy, sum_dy_xmu, d_weight, d_bias] = at::batch_norm_backward_reduce(
        dy, input, mean, inverse, optional(weight), true, weight.defined(), weight.defined());
    return {sum_dy, sum_dy_xmu, d_weight, d_bias};
  }
  const at::Tensor exact_dy = dy.to(mean.scalar_type());
  const at::Tensor xmu = input.sub(per_channel(mean, input));
  const at::Tensor sum_dy = sum_over_channels(exact_dy);
  const at::Tensor sum_dy_xmu = sum_over_channels(exact_dy.mul(xmu));
  return {sum_dy, sum_dy_xmu, sum_dy_xmu.mul(inverse), sum_dy};
}

at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& weight,
                          const BatchStatistics& statistics, const at::Tensor& inverse,
                          const at::Tensor& sum_dy, const at::Tensor& sum_dy_xmu) {
  if (input.numel() == 0) return at::zeros_like(input);
  const at::Tensor& mean = statistics.mean;
  const at::Tensor exact_weight = weight.defined() ? weight.to(mean.scalar_type()) : weight;
  if (!input.is_cpu()) {
    return at::batch_norm_backward_elemt(dy, input, mean, inverse, optional(exact_weight), sum_dy,
                                         sum_dy_xmu, statistics.counts);
  }
  // scale * (dy - mean(dy) - (x - mean) * mean(dy * (x - mean)) / (var + eps))
  const at::Tensor scale = weight.defined() ? inverse.mul(exact_weight) : inverse;
  const at::Tensor slope = sum_dy_xmu.div(statistics.total).mul_(inverse).mul_(inverse);
  return dy.sub(per_channel(sum_dy.div(statistics.total), input))
      .sub_(input.sub(per_channel(mean, input)).mul_(per_channel(slope, input)))
      .mul_(per_channel(scale, input))
      .to(input.scalar_type());
}

class Normalize : public torch::autograd::Function<Normalize> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input,
                            const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias,
                            const BatchStatistics& statistics, const std::weak_ptr<World>& world,
                            double eps) {
    const at::Tensor values = input.is_cpu() ? input : dense(input);
    const at::Tensor inverse = inverse_deviation(statistics.var, eps);
    ctx->save_for_backward({values, weight.value_or(at::Tensor()), statistics.mean, inverse,
                            statistics.counts, statistics.total});
    ctx->saved_data["world"] = c10::IValue::make_capsule(c10::make_intrusive<WorldHolder>(world));
    if (input.numel() == 0) return at::empty_like(input);
    if (!input.is_cpu()) {
      return at::batch_norm_elemt(values, weight, bias, statistics.mean, inverse, eps);
    }
    return std::get<0>(at::native_batch_norm(values, weight, bias, statistics.mean, statistics.var,
                                             /*training=*/false,
                                             /*momentum=*/0, eps));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& output_gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error(ErrorDetails{.problem = "SyncBatchNorm does not support second derivatives",
                               .expected = "backward without create_graph"});
    }
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const at::Tensor& inverse = saved[3];
    const BatchStatistics statistics{
        .mean = saved[2], .var = {}, .counts = saved[4], .total = saved[5]};
    const at::Tensor dy = input.is_cpu() ? output_gradients[0] : dense(output_gradients[0]);

    const Gradients local = reduce_gradients(dy, input, weight, statistics.mean, inverse);
    variable_list gradients(6);
    if (ctx->needs_input_grad(0)) {
      at::Tensor sums = at::cat({local.sum_dy, local.sum_dy_xmu});
      sum_over_processes(*ctx, sums);
      const int64_t channels = statistics.mean.numel();
      gradients[0] =
          input_gradient(dy, input, weight, statistics, inverse, sums.narrow(0, 0, channels),
                         sums.narrow(0, channels, channels));
    }
    // The gradients of the parameters are those of this process: data-parallel training averages
    // them.
    if (weight.defined()) {
      gradients[1] = local.weight.to(weight.scalar_type());
      gradients[2] = local.bias.to(weight.scalar_type());
    }
    return gradients;
  }

 private:
  static void sum_over_processes(const AutogradContext& ctx, const at::Tensor& sums) {
    const auto holder =
        c10::static_intrusive_pointer_cast<WorldHolder>(ctx.saved_data.at("world").toCapsule());
    const auto world = holder->world.lock();
    if (!world) {
      throw Error(ErrorDetails{.problem = "Cannot run backward through SyncBatchNorm",
                               .expected = "the World in which its forward ran",
                               .got = "a World that has ended"});
    }
    all_reduce(*world, Channel::data, "the gradients of batch statistics", sums, Reduction::sum);
  }
};

}  // namespace

BatchStatistics gather_statistics(const World& world, const at::Tensor& input) {
  const int64_t channels = input.size(1);
  const auto options = input.options().dtype(statistics_type(input));
  at::Tensor own = at::zeros({2 * channels + 1}, options);
  if (input.numel() > 0) {
    const auto [mean, var] = local_mean_and_var(input);
    own = at::cat({mean, var, at::full({1}, input.numel() / channels, options)});
  }
  at::Tensor all = at::empty({world.size(), own.numel()}, options);
  all_gather(world, Channel::data, "batch statistics", all.view(-1), own);

  const at::Tensor means = all.narrow(1, 0, channels);
  const at::Tensor vars = all.narrow(1, channels, channels);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);
  const at::Tensor total = counts.sum().view({1});
  // Everything stays on the device, and the host does not wait for results. Processes without rows
  // have a share of 0.
  const at::Tensor shares = counts.div(total.clamp_min(1));
  const at::Tensor mean = means.mul(shares).sum(0);
  const at::Tensor distances = means.sub(mean);
  return {.mean = mean,
          .var = vars.add(distances.mul(distances)).mul_(shares).sum(0),
          .counts = counts.view(-1).to(c10::kInt),
          .total = total};
}

at::Tensor normalize(const std::weak_ptr<World>& world, const at::Tensor& input,
                     const at::Tensor& weight, const at::Tensor& bias,
                     const BatchStatistics& statistics, double eps) {
  return Normalize::apply(input, optional(weight), optional(bias), statistics, world, eps);
}

}  // namespace accelerant::dist
