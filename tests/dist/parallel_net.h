// A small model and a loop for the tests of DataParallel, which run them in one process and in
// several.
#pragma once

#include <dist/data_parallel.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "support/parameter_hash.h"

namespace parallel_net {

using accelerant::dist::DataParallel;
using accelerant::dist::DataParallelOptions;
using accelerant::dist::NamedParameter;
using accelerant::dist::World;

inline std::shared_ptr<World> join_world() {
  return World::join(accelerant::dist::Environment::detect());
}

// Has only the requested parts, since unused parts are tested separately.
struct Net : torch::nn::Module {
  explicit Net(const std::set<std::string>& parts) {
    torch::manual_seed(7);
    for (torch::nn::Linear* layer : {&in, &inner, &out, &other_out}) (*layer)->reset_parameters();
    words->reset_parameters();
    if (parts.contains("in")) register_module("in", in);
    if (parts.contains("inner")) register_module("inner", inner);
    if (parts.contains("out")) register_module("out", out);
    if (parts.contains("other_out")) register_module("other_out", other_out);
    if (parts.contains("norm")) register_module("norm", norm);
    if (parts.contains("words")) register_module("words", words);
  }

  at::Tensor hidden(const at::Tensor& x) { return torch::tanh(in(x)); }

  torch::nn::Linear in{4, 8}, inner{8, 8}, out{8, 2}, other_out{8, 2};
  torch::nn::BatchNorm1d norm{8};
  torch::nn::Embedding words{torch::nn::EmbeddingOptions(20, 8).sparse(true)};
};

inline std::vector<NamedParameter> named_parameters_of(const torch::nn::Module& net) {
  std::vector<NamedParameter> parameters;
  for (const auto& item : net.named_parameters()) {
    parameters.push_back({item.key(), item.value(), item.key() == "words.weight"});
  }
  return parameters;
}

inline std::unique_ptr<DataParallel> parallel_of(const std::shared_ptr<World>& world,
                                                 const std::shared_ptr<Net>& net,
                                                 const DataParallelOptions& options = {}) {
  return std::make_unique<DataParallel>(
      world, named_parameters_of(*net), [net] { return net->buffers(); }, options);
}

using Tensors = std::vector<at::Tensor>;
// Runs a forward with the calls that belong around it. The bool says whether to synchronise.
using Call = std::function<Tensors(bool, const std::function<Tensors()>&)>;

inline Call call_of(DataParallel& parallel) {
  return [&parallel](bool synchronise, const std::function<Tensors()>& forward) {
    parallel.before_forward(synchronise);
    return parallel.after_forward(forward(), synchronise);
  };
}

inline Call plain_call() {
  return [](bool, const std::function<Tensors()>& forward) { return forward(); };
}

// The batch of a rank in a step: 6 rows.
inline at::Tensor batch_of(int64_t step, int64_t rank) {
  auto generator =
      at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 * step + rank));
  return torch::randn({6, 4}, generator);
}

inline void step_and_clear(torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : net.parameters()) {
    if (!parameter.grad().defined()) continue;
    parameter.add_(parameter.grad(), -0.1);
    parameter.mutable_grad().reset();
  }
}

// Compares within a tolerance relative to the largest number.
inline void expect_close(const Tensors& got, const Tensors& expected, double tolerance = 1e-6) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i].numel() == 0) continue;
    const at::Tensor exact = expected[i].detach().to(at::kComplexDouble);
    const double error =
        (got[i].detach().to(at::kComplexDouble) - exact).abs().max().item<double>();
    EXPECT_LE(error, tolerance * (1 + exact.abs().max().item<double>())) << "tensor " << i;
  }
}

}  // namespace parallel_net
