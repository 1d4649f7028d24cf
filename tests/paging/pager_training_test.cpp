// Models that train the same, bit for bit, with and without paged parameters.
#include <ATen/Context.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/script.h>

#include <array>
#include <atomic>
#include <optional>
#include <thread>

#include "accelerant/amp/autocast.h"
#include "accelerant/nn/activation_checkpoint.h"
#include "paging/paged_training.h"

namespace {

namespace nn = torch::nn;
using accelerant::AutocastGuard;

class PagerTraining : public PagedTraining {};
ON_EVERY_DEVICE(PagerTraining);

// --- Models ---------------------------------------------------------------------------------------

Subject mlp(const at::TensorOptions& options) {
  auto module = std::make_shared<Parts>();
  auto up = module->add("up", nn::Linear(16, 32));
  auto norm = module->add("norm", nn::LayerNorm(nn::LayerNormOptions({32})));
  auto down = module->add("down", nn::Linear(32, 4));
  module->to(options.device());
  return {module, [=](int) mutable {
            auto h = norm(up(torch::randn({8, 16}, options)));
            h.relu_();
            return down(h).square().mean();
          }};
}

Subject tied(const at::TensorOptions& options) {
  auto module = std::make_shared<Parts>();
  auto embedding = module->add("embedding", nn::Embedding(20, 16));
  auto middle = module->add("middle", nn::Linear(16, 16));
  const auto head = std::make_shared<Parts>();
  head->add("weight", embedding->weight);
  module->register_module("head", head);
  module->to(options.device());
  return {module, [=](int) mutable {
            const auto tokens = torch::randint(0, 20, {4, 6}, options.dtype(at::kLong));
            const auto weight = head->named_parameters()["weight"];
            const auto logits = torch::linear(middle(embedding(tokens)), weight).flatten(0, 1);
            return nn::functional::cross_entropy(logits, tokens.flatten());
          }};
}

Subject convolutions(const at::TensorOptions& options) {
  auto module = std::make_shared<Parts>();
  auto first = module->add("first", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)));
  auto norm = module->add("norm", nn::BatchNorm2d(8));
  auto second = module->add("second", nn::Conv2d(nn::Conv2dOptions(8, 4, 3)));
  module->to(options.device());
  return {module, [=](int step) mutable {
            module->train(step != 1);
            const auto h = torch::relu(norm(first(torch::randn({2, 3, 8, 8}, options))));
            return second(h).square().mean();
          }};
}

Subject attention(const at::TensorOptions& options) {
  auto module = std::make_shared<Parts>();
  auto many = module->add(
      "many", nn::MultiheadAttention(nn::MultiheadAttentionOptions(16, 4).dropout(0.2)));
  auto joint = module->add("joint", nn::Linear(16, 48));
  auto queries = module->add("queries", torch::randn({1, 2, 5, 8}));
  module->to(options.device());
  return {module, [=](int) mutable {
            const auto x = torch::randn({6, 2, 16}, options);
            const auto h = std::get<0>(many(x, x, x));
            const auto parts = joint(h).transpose(0, 1).chunk(3, -1);
            const auto heads = [](const at::Tensor& t) {
              return t.unflatten(-1, {2, 8}).transpose(1, 2);
            };
            const auto y = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]),
                                                            heads(parts[2]), {}, 0.1, true);
            const auto z = at::scaled_dot_product_attention(queries.expand({2, -1, -1, -1}),
                                                            heads(parts[1]), heads(parts[2]));
            return y.square().mean() + z.square().mean();
          }};
}

Subject recurrent(const at::TensorOptions& options) {
  auto module = std::make_shared<Parts>();
  auto lstm = module->add(
      "lstm", nn::LSTM(nn::LSTMOptions(8, 8).num_layers(2).bidirectional(true).dropout(0.1)));
  auto gru = module->add("gru", nn::GRU(16, 8));
  auto rnn = module->add("rnn", nn::RNN(nn::RNNOptions(8, 8)));
  auto cell = module->add("cell", nn::GRUCell(8, 8));
  module->to(options.device());
  return {module, [=](int) mutable {
            const auto h = std::get<0>(gru(std::get<0>(lstm(torch::randn({5, 2, 8}, options)))));
            return cell(std::get<0>(rnn(h))[-1]).square().mean();
          }};
}

Subject assorted(const at::TensorOptions& options) {
  auto module = std::make_shared<Parts>();
  auto bag = module->add("bag", nn::EmbeddingBag(10, 8));
  auto bilinear = module->add("bilinear", nn::Bilinear(8, 8, 8));
  auto norm = module->add("norm", nn::GroupNorm(nn::GroupNormOptions(2, 8)));
  auto up = module->add("up", nn::ConvTranspose1d(nn::ConvTranspose1dOptions(8, 4, 3)));
  auto prelu = module->add("prelu", nn::PReLU());
  module->to(options.device());
  return {module, [=](int) mutable {
            const auto h = bag(torch::randint(0, 10, {4, 3}, options.dtype(at::kLong)));
            const auto x = norm(bilinear(h, h)).unsqueeze(-1).expand({-1, -1, 5});
            return prelu(up(x)).square().mean();
          }};
}

// Views of parameters that autograd saves.
Subject views(const at::TensorOptions& options) {
  auto module = std::make_shared<Parts>();
  auto a = module->add("a", torch::randn({12, 8}));
  auto child = module->add("child", nn::Linear(8, 12));
  module->to(options.device());
  return {module, [=](int) mutable {
            const auto& w = a;
            const auto x = torch::randn({8, 3}, options);
            auto y = w.chunk(3, 0)[1].mm(x).sum();
            y = y + w.narrow(0, 2, 4).mm(x).square().sum() + w.select(0, 3).dot(x.select(1, 0));
            y = y + w.unfold(0, 4, 2).square().sum() + w.as_strided({4, 4}, {8, 2}, 3).pow(3).sum();
            y = y + w.t().unsqueeze(0).expand({2, 8, 12}).bmm(w.expand({2, 12, 8})).sum();
            return y + torch::einsum("ij,kj->ik", {w, child->weight}).square().mean() +
                   torch::stack({child->bias, w.select(1, 0)}).square().sum();
          }};
}

MakeSubject under_autocast(const MakeSubject& make, bool has_cache,
                           at::ScalarType dtype = at::kBFloat16) {
  return [=](const at::TensorOptions& options) {
    Subject subject = make(options);
    return Subject{
        subject.module, [=](int step) {
          const AutocastGuard autocast({options.device().type(), dtype, true, has_cache});
          return subject.loss(step).to(at::kFloat);
        }};
  };
}

// Lets scaled_dot_product_attention() use one implementation only.
class OnlyAttention {
 public:
  enum Kind { flash, efficient, cudnn, math };
  static constexpr std::array kinds = {flash, efficient, cudnn, math};

  explicit OnlyAttention(Kind kind) {
    set([kind](Kind other) { return kind == other; });
  }
  ~OnlyAttention() {
    set([](Kind) { return true; });
  }
  OnlyAttention(const OnlyAttention&) = delete;
  OnlyAttention& operator=(const OnlyAttention&) = delete;

 private:
  template <class IsAllowed>
  static void set(const IsAllowed& is_allowed) {
    at::Context& context = at::globalContext();
    context.setSDPUseFlash(is_allowed(flash));
    context.setSDPUseMemEfficient(is_allowed(efficient));
    context.setSDPUseCuDNN(is_allowed(cudnn));
    context.setSDPUseMath(is_allowed(math));
  }
};

// Without dropout, which one of them does not have.
Subject plain_attention(const at::TensorOptions& options) {
  auto module = std::make_shared<Parts>();
  auto joint = module->add("joint", nn::Linear(16, 48));
  auto queries = module->add("queries", torch::randn({1, 2, 6, 8}));
  module->to(options.device());
  return {module, [=](int) mutable {
            const auto parts = joint(torch::randn({2, 6, 16}, options)).chunk(3, -1);
            const auto heads = [](const at::Tensor& t) {
              return t.unflatten(-1, {2, 8}).transpose(1, 2);
            };
            const auto y = at::scaled_dot_product_attention(
                queries.to(parts[0].scalar_type()).expand({2, -1, -1, -1}) + heads(parts[0]),
                heads(parts[1]), heads(parts[2]), {}, 0.0, true);
            return y.square().mean();
          }};
}

c10::Stream new_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

// --- Tests ----------------------------------------------------------------------------------------

TEST_P(PagerTraining, LinearLayersAndANorm) { expect_same_training(mlp); }
TEST_P(PagerTraining, TiedEmbedding) { expect_same_training(tied); }
TEST_P(PagerTraining, ConvolutionsAndBatchNorm) { expect_same_training(convolutions); }
TEST_P(PagerTraining, Attention) { expect_same_training(attention); }
TEST_P(PagerTraining, RecurrentLayers) { expect_same_training(recurrent); }
TEST_P(PagerTraining, OtherLayers) { expect_same_training(assorted); }
TEST_P(PagerTraining, ViewsOfParameters) { expect_same_training(views); }

TEST_P(PagerTraining, UnderAutocast) {
  for (const bool has_cache : {true, false}) {
    SCOPED_TRACE(has_cache);
    for (const auto& make : {mlp, tied, convolutions, attention}) {
      expect_same_training(under_autocast(make, has_cache));
    }
    // libtorch's own recurrent layers cannot be trained so on a CPU.
    if (on_cuda()) expect_same_training(under_autocast(recurrent, has_cache));
  }
}

TEST_P(PagerTraining, Float16WithAScaledLoss) {
  if (!on_cuda()) GTEST_SKIP() << "float16 is for GPUs";
  for (const auto& make : {mlp, tied, convolutions, attention, recurrent}) {
    expect_same_training([&](const at::TensorOptions& options) {
      Subject subject = under_autocast(make, true, at::kHalf)(options);
      return Subject{subject.module, [=](int step) { return subject.loss(step) * 1024; }};
    });
  }
}

TEST_P(PagerTraining, EveryImplementationOfAttention) {
  if (!on_cuda()) GTEST_SKIP() << "a CPU has one";
  int tried = 0;
  for (const OnlyAttention::Kind kind : OnlyAttention::kinds) {
    SCOPED_TRACE(kind);
    const OnlyAttention only(kind);
    const MakeSubject make = under_autocast(plain_attention, true);
    try {
      train(make, options(), std::nullopt, 1);
    } catch (const c10::Error& error) {
      std::cout << "not available here: " << error.what_without_backtrace() << '\n';
      continue;
    }
    ++tried;
    expect_same_training(make);
  }
  EXPECT_GE(tried, 2);
}

TEST_P(PagerTraining, BackwardUnderAnotherStream) {
  if (!on_cuda()) GTEST_SKIP() << "needs streams";
  const c10::Stream stream = new_stream(device());
  expect_same_training([&](const at::TensorOptions& options) {
    Subject subject = mlp(options);
    return Subject{subject.module, [=](int step) {
                     const auto loss = subject.loss(step);
                     {
                       const c10::StreamGuard guard(stream);
                       loss.backward({}, /*retain_graph=*/true);
                     }
                     torch::cuda::synchronize();
                     return loss;
                   }};
  });
}

TEST_P(PagerTraining, RecomputedActivations) {
  expect_same_training([](const at::TensorOptions& options) {
    auto module = std::make_shared<Parts>();
    auto first = module->add("first", nn::Linear(16, 16));
    auto second = module->add("second", nn::Linear(16, 16));
    module->to(options.device());
    return Subject{module, [=](int) mutable {
                     auto block = [=](const at::Tensor& x) mutable {
                       return torch::dropout(torch::gelu(second(first(x))), 0.2, true);
                     };
                     const auto x = torch::randn({4, 16}, options);
                     const auto h = accelerant::nn::checkpoint(block, x);
                     return accelerant::nn::checkpoint(block, h).square().mean();
                   }};
  });
}

TEST_P(PagerTraining, DoubleBackward) {
  expect_same_training([](const at::TensorOptions& options) {
    Subject subject = mlp(options);
    return Subject{
        subject.module, [=](int step) {
          const auto loss = subject.loss(step);
          const auto parameters = subject.module->parameters();
          auto penalty = loss;
          for (const auto& gradient : torch::autograd::grad({loss}, parameters, {}, true, true)) {
            penalty = penalty + gradient.square().sum();
          }
          return penalty;
        }};
  });
}

TEST_P(PagerTraining, BackwardTwiceThroughOneGraph) {
  expect_same_training([](const at::TensorOptions& options) {
    Subject subject = mlp(options);
    return Subject{subject.module, [=](int step) {
                     const auto loss = subject.loss(step);
                     loss.backward({}, /*retain_graph=*/true);
                     return loss;
                   }};
  });
}

// What optimizers and initialisers do to parameters, without gradients.
TEST_P(PagerTraining, WritesOfAllKinds) {
  expect_same_training([](const at::TensorOptions& options) {
    auto module = std::make_shared<Parts>();
    auto a = module->add("a", nn::Linear(6, 6));
    auto b = module->add("b", nn::Linear(6, 6));
    auto embedding =
        module->add("embedding", nn::Embedding(nn::EmbeddingOptions(10, 6).max_norm(0.5)));
    module->to(options.device());
    return Subject{module, [=](int step) mutable {
                     const at::NoGradGuard no_grad;
                     nn::init::normal_(a->weight);
                     b->weight.copy_(a->weight);
                     at::_foreach_mul_({a->weight, a->bias}, 1.5);
                     at::add_out(b->bias, a->bias, b->bias);
                     b->weight.index_put_({torch::tensor({0, 2}, options.dtype(at::kLong))},
                                          torch::ones({6}, options));
                     a->weight[1].fill_(3);
                     a->weight.t().add_(1);
                     auto h = embedding(torch::randint(0, 10, {4}, options.dtype(at::kLong)));
                     auto gradients = std::vector<at::Tensor>{torch::ones_like(a->weight)};
                     auto first = std::vector<at::Tensor>{torch::zeros_like(a->weight)};
                     auto second = std::vector<at::Tensor>{torch::zeros_like(a->weight)};
                     auto count = std::vector<at::Tensor>{torch::full({}, step + 1, options)};
                     at::_fused_adamw_({a->weight}, gradients, first, second, {}, count, 1e-2, 0.9,
                                       0.99, 0.1, 1e-8, false, false);
                     return a->weight.norm() + b->bias.sum().item<double>() + h.sum();
                   }};
  });
}

TEST_P(PagerTraining, ForwardsWithoutGradients) {
  for (const bool inference : {false, true}) {
    SCOPED_TRACE(inference);
    const auto make = [inference](const at::TensorOptions& options) {
      Subject subject = attention(options);
      return Subject{subject.module, [=](int step) {
                       if (inference) {
                         const c10::InferenceMode guard;
                         return subject.loss(step);
                       }
                       const at::NoGradGuard guard;
                       return subject.loss(step);
                     }};
    };
    expect_same_training(make);
  }
}

TEST_P(PagerTraining, ClonesOfAModuleAreOrdinary) {
  torch::manual_seed(1);
  nn::Sequential model(nn::Linear(8, 8), nn::ReLU(), nn::Linear(8, 2));
  model->to(device());
  const auto x = torch::randn({3, 8}, options());
  const auto expected = model->forward(x).detach();  // a graph would hold views of the weights
  const auto pager = page(*model, device(), {.budget_in_units = 0});
  const auto copy = std::dynamic_pointer_cast<nn::SequentialImpl>(model->clone());
  for (const auto& parameter : copy->parameters()) EXPECT_NE(parameter.const_data_ptr(), nullptr);
  EXPECT_TRUE(torch::equal(copy->forward(x), expected));
  EXPECT_TRUE(torch::equal(model->forward(x), expected));
}

TEST_P(PagerTraining, CompiledTorchScript) {
  if (on_cuda()) GTEST_SKIP() << "kernels that TorchScript fuses read addresses";
  const auto script = torch::jit::compile(R"(
    def layer(x, weight, bias):
        return torch.relu(torch.matmul(x, weight.t()) + bias) * weight.sum()
  )");
  torch::manual_seed(1);
  nn::Linear linear(8, 8);
  linear->to(device());
  const auto x = torch::randn({3, 8}, options());
  const auto run = [&] {
    const auto y = script->run_method("layer", x, linear->weight, linear->bias).toTensor();
    linear->zero_grad();
    y.sum().backward();
    return std::vector{on_host(y), on_host(linear->weight.grad()), on_host(linear->bias.grad())};
  };
  const auto expected = run();
  const auto pager = page(*linear, device(), {.budget_in_units = 0});
  for (int i = 0; i < 3; ++i) {  // profiled, then optimised
    const auto result = run();
    for (std::size_t k = 0; k < 3; ++k) EXPECT_TRUE(torch::allclose(result[k], expected[k]));
  }
}

TEST_P(PagerTraining, TwoThreadsAtOnce) {
  torch::manual_seed(1);
  nn::Sequential model;
  for (int i = 0; i < 6; ++i) model->push_back(nn::Linear(16, 16));
  model->to(device());
  const auto x = torch::randn({4, 16}, options());
  const auto parameters = model->parameters();
  const auto gradients = [&] {
    return torch::autograd::grad({model->forward(x).square().sum()}, parameters);
  };
  const auto expected = gradients();
  if (on_cuda()) torch::cuda::synchronize();
  for (const int budget : {0, 2}) {
    const auto pager = page(*model, device(), {.budget_in_units = budget});
    std::atomic<int> differences = 0;
    const auto work = [&] {
      std::optional<c10::StreamGuard> own_stream;
      if (on_cuda()) own_stream.emplace(new_stream(device()));
      for (int i = 0; i < 50; ++i) {
        const auto found = gradients();
        for (std::size_t k = 0; k < found.size(); ++k) {
          if (!torch::equal(found[k], expected[k])) ++differences;
        }
      }
    };
    std::thread other(work);
    work();
    other.join();
    EXPECT_EQ(differences, 0);
    EXPECT_GT(pager->statistics().fetches, 100U);
  }
}

// All gradients are the same, so their sum does not depend on the order.
TEST_P(PagerTraining, TwoThreadsThatAddToTheSameGradients) {
  constexpr int times = 25;
  torch::manual_seed(1);
  nn::Sequential model;
  for (int i = 0; i < 6; ++i) model->push_back(nn::Linear(16, 16));
  model->to(device());
  const auto x = torch::randn({4, 16}, options());
  const auto work = [&] {
    for (int i = 0; i < times; ++i) model->forward(x).square().sum().backward();
  };
  const auto take_gradients = [&] {
    std::vector<at::Tensor> gradients;
    for (const auto& parameter : model->parameters()) {
      gradients.push_back(on_host(parameter.grad()));
    }
    model->zero_grad();
    return gradients;
  };
  work();
  work();
  const auto expected = take_gradients();
  for (const int budget : {0, 2}) {
    const auto pager = page(*model, device(), {.budget_in_units = budget});
    std::thread other(work);
    work();
    other.join();
    const auto found = take_gradients();
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
    }
    EXPECT_GT(pager->statistics().fetches, 100U);
  }
}

}  // namespace
