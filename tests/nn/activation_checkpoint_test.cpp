#include "accelerant/nn/activation_checkpoint.h"

#include <accelerant/amp/autocast.h>
#include <accelerant/nn/layers.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "support/expect_error.h"
#include "support/on_device.h"

namespace {

using accelerant::nn::checkpoint;
using accelerant::nn::checkpoint_sequential;
using accelerant::nn::CheckpointOptions;

// A transformer's feed-forward part: several saved tensors, random numbers, parameters.
struct BlockImpl : torch::nn::Module {
  torch::nn::LayerNorm norm{
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})))};
  accelerant::nn::Linear up{register_module("up", accelerant::nn::Linear(16, 64))};
  accelerant::nn::Linear down{register_module("down", accelerant::nn::Linear(64, 16))};
  torch::nn::Dropout dropout{register_module("dropout", torch::nn::Dropout(0.3))};
  int calls = 0;
  torch::Tensor forward(const torch::Tensor& x) {
    ++calls;
    return x + dropout(down(torch::gelu(up(norm(x)))));
  }
};
TORCH_MODULE(Block);

struct Gradients {
  torch::Tensor output, input;
  std::vector<torch::Tensor> parameters;
};

// Runs `forward` on the input and then a backward, with the same random numbers each time.
Gradients gradients_of(const std::function<torch::Tensor(torch::Tensor)>& forward,
                       torch::nn::Module& module, const torch::Tensor& input) {
  torch::manual_seed(11);
  module.zero_grad();
  const auto x = input.detach().clone().requires_grad_();
  const auto output = forward(x);
  (output.to(torch::kFloat) * torch::randn_like(output, torch::kFloat)).sum().backward();
  Gradients result{.output = output.detach(), .input = x.grad(), .parameters = {}};
  for (const auto& parameter : module.parameters()) {
    result.parameters.push_back(parameter.grad().clone());
  }
  return result;
}

void expect_same(const Gradients& a, const Gradients& b) {
  EXPECT_TRUE(torch::equal(a.output, b.output));
  EXPECT_TRUE(torch::equal(a.input, b.input));
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (std::size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_TRUE(torch::equal(a.parameters[i], b.parameters[i])) << "parameter " << i;
  }
}

class ActivationCheckpoint : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (!IsSkipped()) block->to(device());
  }
  torch::Tensor input() const { return torch::randn({4, 8, 16}, options()); }

  Block block;
};
ON_EVERY_DEVICE(ActivationCheckpoint);

TEST_P(ActivationCheckpoint, HasTheGradientsOfThePlainForward) {
  const auto x = input();
  const auto plain = gradients_of([&](auto h) { return block(h); }, *block, x);
  for (const bool early_stop : {true, false}) {
    const CheckpointOptions how{.early_stop = early_stop};
    expect_same(plain, gradients_of([&](auto h) { return checkpoint(how, block, h); }, *block, x));
  }
  EXPECT_EQ(block->calls, 5);
}

TEST_P(ActivationCheckpoint, RunsTheSecondForwardUnderTheAutocastOfTheFirst) {
  const auto x = input();
  const auto under_autocast = [&](auto run) {
    return [this, run](torch::Tensor h) {
      const accelerant::AutocastGuard autocast({GetParam(), at::kBFloat16});
      return run(h);
    };
  };
  const auto plain = gradients_of(under_autocast([&](auto h) { return block(h); }), *block, x);
  const auto saved =
      gradients_of(under_autocast([&](auto h) { return checkpoint(block, h); }), *block, x);
  expect_same(plain, saved);
}

TEST_P(ActivationCheckpoint, LeavesTheRandomNumbersAfterItAlone) {
  const auto x = input().requires_grad_();
  const auto next_number = [&](bool with_checkpoint) {
    torch::manual_seed(3);
    const auto y = with_checkpoint ? checkpoint(block, x) : block(x);
    y.sum().backward();
    return torch::rand({4}, options());
  };
  EXPECT_TRUE(torch::equal(next_number(false), next_number(true)));
}

TEST_P(ActivationCheckpoint, WithoutRandomStateDrawsOtherNumbers) {
  const auto x = input();
  const auto plain = gradients_of([&](auto h) { return block(h); }, *block, x);
  const auto other = gradients_of(
      [&](auto h) { return checkpoint({.preserve_rng_state = false}, block, h); }, *block, x);
  EXPECT_TRUE(torch::equal(plain.output, other.output));
  EXPECT_FALSE(torch::equal(plain.input, other.input));
}

TEST_P(ActivationCheckpoint, NestsInItself) {
  const auto x = input();
  Block second;
  second->to(device());
  torch::nn::ModuleList both(block, second);
  const auto plain = gradients_of([&](auto h) { return second(block(h)); }, *both, x);
  const auto nested = gradients_of(
      [&](auto h) {
        return checkpoint(
            [&](const torch::Tensor& outer) {
              const auto middle = checkpoint(block, outer);
              return checkpoint([&](const torch::Tensor& inner) { return second(inner); }, middle);
            },
            h);
      },
      *both, x);
  expect_same(plain, nested);
}

// --- Memory ---------------------------------------------------------------------------------------

// Counts which of the watched tensors still exist.
class LivingTensors {
 public:
  torch::Tensor watch(const torch::Tensor& tensor) {
    watched_.emplace_back(tensor.storage().getWeakStorageImpl());
    return tensor;
  }
  long count() const {
    return std::count_if(watched_.begin(), watched_.end(),
                         [](const auto& weak) { return !weak.expired(); });
  }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> watched_;
};

TEST_P(ActivationCheckpoint, KeepsNothingButItsInputs) {
  LivingTensors living;
  const auto deep = [&](torch::Tensor h) {
    for (int i = 0; i < 10; ++i) h = living.watch(torch::tanh(h));
    return h;
  };
  const auto x = input().requires_grad_();
  auto y = deep(x);
  EXPECT_EQ(living.count(), 10);
  y.reset();
  EXPECT_EQ(living.count(), 0);

  y = checkpoint(deep, x);
  EXPECT_EQ(living.count(), 1);  // the result
  const auto sum = y.sum();
  y.reset();
  EXPECT_EQ(living.count(), 0);
  sum.backward();
  EXPECT_EQ(living.count(), 0);
  EXPECT_TRUE(x.grad().defined());
}

TEST_P(ActivationCheckpoint, InnerOnesDoNotKeepTheirInputs) {
  LivingTensors living;
  const auto step = [&](const torch::Tensor& h) { return living.watch(torch::tanh(h)); };
  const auto x = input().requires_grad_();
  const auto y = checkpoint(
      [&](torch::Tensor h) {
        for (int i = 0; i < 4; ++i) h = checkpoint(step, h);
        return h;
      },
      x);
  EXPECT_EQ(living.count(), 1);
  y.sum().backward();
  const auto gradient = x.grad().clone();
  x.mutable_grad().reset();
  auto plain = x;
  for (int i = 0; i < 4; ++i) plain = torch::tanh(plain);
  plain.sum().backward();
  EXPECT_TRUE(torch::equal(gradient, x.grad()));
}

TEST_P(ActivationCheckpoint, IsForgottenWithItsGraph) {
  const auto owned = std::make_shared<int>(0);
  auto x = input().requires_grad_();
  auto y = checkpoint([owned](const torch::Tensor& h) { return h.exp().tanh(); }, x);
  EXPECT_GT(owned.use_count(), 1);
  y.sum().backward();
  EXPECT_EQ(owned.use_count(), 1);  // backward has freed it, although y still exists
  y = checkpoint([owned](const torch::Tensor& h) { return h.exp().tanh(); }, x);
  y.reset();
  EXPECT_EQ(owned.use_count(), 1);
}

// --- What autograd offers ---------------------------------------------------------------------------

TEST_P(ActivationCheckpoint, ParametersAloneGetGradients) {
  checkpoint(block, input()).sum().backward();
  for (const auto& parameter : block->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST_P(ActivationCheckpoint, GoesBackTwice) {
  const auto x = input().requires_grad_();
  const auto y = checkpoint(block, x).sum();
  y.backward({}, /*retain_graph=*/true);
  const auto once = x.grad().clone();
  y.backward();
  EXPECT_TRUE(torch::equal(x.grad(), once * 2));
  EXPECT_EQ(block->calls, 3);
}

TEST_P(ActivationCheckpoint, GivesGradientsOfAPart) {
  const auto x = input().requires_grad_();
  const auto y = checkpoint(block, x).sum();
  const auto gradients = torch::autograd::grad({y}, {x, block->up->weight});
  EXPECT_FALSE(x.grad().defined());
  EXPECT_FALSE(block->up->weight.grad().defined());
  EXPECT_EQ(gradients[1].sizes(), block->up->weight.sizes());
}

TEST_P(ActivationCheckpoint, GivesGradientsOfGradients) {
  const auto second_gradient = [&](bool with_checkpoint) {
    const auto cube = [](const torch::Tensor& h) { return (h * h * h).sum(); };
    const auto x = torch::full({3}, 2, options()).requires_grad_();
    const auto y = with_checkpoint ? checkpoint(cube, x) : cube(x);
    const auto first = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true,
                                             /*create_graph=*/true)[0];
    first.sum().backward();
    return x.grad();
  };
  EXPECT_TRUE(torch::equal(second_gradient(false), second_gradient(true)));
  EXPECT_TRUE(torch::equal(second_gradient(true), torch::full({3}, 12, options())));
}

TEST_P(ActivationCheckpoint, JustCallsTheFunctionWithoutGradients) {
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(block, input()).requires_grad());
  EXPECT_EQ(block->calls, 1);
}

TEST_P(ActivationCheckpoint, TakesAndReturnsNestedData) {
  using Batch = std::map<std::string, torch::Tensor>;
  const auto f = [](const Batch& batch, std::pair<torch::Tensor, double> other, int64_t power,
                    const std::optional<torch::Tensor>& none) {
    EXPECT_FALSE(none.has_value());
    const auto a = batch.at("a").pow(power) * other.first * other.second;
    return std::make_tuple(a, std::vector<torch::Tensor>{a.exp(), batch.at("ids")}, 7);
  };
  const auto a = torch::full({2}, 0.5, options()).requires_grad_();
  const auto b = torch::full({2}, 0.25, options()).requires_grad_();
  const Batch batch{{"a", a}, {"ids", torch::ones({2}, options(at::kLong))}};
  const auto [first, rest, number] =
      checkpoint(f, batch, std::make_pair(b, 2.0), int64_t{3}, std::optional<torch::Tensor>());
  EXPECT_EQ(number, 7);
  EXPECT_EQ(rest.at(1).scalar_type(), at::kLong);
  (first.sum() + rest.at(0).sum()).backward();
  const auto inner = 0.5 * 0.5 * 0.5 * 0.25 * 2;
  const auto slope = 3 * 0.5 * 0.5 * 0.25 * 2 * (1 + std::exp(inner));
  EXPECT_TRUE(torch::allclose(a.grad(), torch::full({2}, slope, options())));
}

TEST(ActivationCheckpoints, SayWhenTheyRecompute) {
  std::vector<bool> seen;
  const auto x = torch::ones({2}).requires_grad_();
  const auto y = checkpoint(
      [&](const torch::Tensor& h) {
        seen.push_back(accelerant::nn::is_recomputing());
        return h.exp();
      },
      x);
  y.sum().backward();
  EXPECT_EQ(seen, (std::vector<bool>{false, true}));
  EXPECT_FALSE(accelerant::nn::is_recomputing());
}

// --- Errors ---------------------------------------------------------------------------------------

TEST(ActivationCheckpoints, NameAShapeThatDiffers) {
  int64_t size = 3;
  const auto x = torch::ones({5}).requires_grad_();
  const auto y = checkpoint([&](const torch::Tensor& h) { return h.narrow(0, 0, size).exp(); }, x);
  size = 4;
  const std::string error = whole_error_of([&] { y.sum().backward(); });
  EXPECT_TRUE(contains(error, "second forward of a checkpoint"));
  EXPECT_TRUE(contains(error, "Float [3] on cpu, as tensor 1 of 1"));
  EXPECT_TRUE(contains(error, "Float [4] on cpu"));
}

TEST(ActivationCheckpoints, NoticeThatLessOrMoreIsDone) {
  const auto x = torch::ones({5}).requires_grad_();
  const auto error_with = [&](int first, int second) {
    int count = first;
    const auto y = checkpoint(
        {.early_stop = false},
        [&](torch::Tensor h) {
          for (int i = 0; i < count; ++i) h = h.exp();
          return h;
        },
        x);
    count = second;
    return whole_error_of([&] { y.sum().backward(); });
  };
  EXPECT_TRUE(contains(error_with(3, 2), "3 tensors saved for backward"));
  EXPECT_TRUE(contains(error_with(2, 3), "more"));
}

TEST(ActivationCheckpoints, NoticeAParameterThatHasChanged) {
  accelerant::nn::Linear linear(4, 4);
  const auto y = checkpoint(linear, torch::randn({2, 4}).requires_grad_());
  {
    const torch::NoGradGuard no_grad;
    linear->weight.add_(1);
  }
  EXPECT_TRUE(contains(whole_error_of([&] { y.sum().backward(); }), "A parameter was changed"));
}

TEST(ActivationCheckpoints, NoticeInputsThatHaveChanged) {
  const auto x = torch::ones({2}).requires_grad_();
  const auto h = x * 2;
  const auto y = checkpoint([](const torch::Tensor& t) { return t.sin(); }, h);
  h.detach().add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

TEST(ActivationCheckpoints, NoticeChangesInPlaceInside) {
  const auto x = torch::ones({2}).requires_grad_();
  const auto y = checkpoint([](const torch::Tensor& t) { return t.exp().add_(1).sin(); }, x);
  EXPECT_TRUE(contains(whole_error_of([&] { y.sum().backward(); }), "was changed in place"));
}

TEST(ActivationCheckpoints, PassTheErrorsOfTheFunctionOn) {
  const auto x = torch::ones({2}).requires_grad_();
  EXPECT_THROW(checkpoint(
                   [](const torch::Tensor& t) -> torch::Tensor {
                     t.exp();
                     throw std::runtime_error("mine");
                   },
                   x),
               std::runtime_error);
  // Afterwards autograd saves as usual.
  const auto y = x.exp();
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), y));
}

// --- Sequences ------------------------------------------------------------------------------------

TEST_P(ActivationCheckpoint, RunsASequenceInSegments) {
  torch::nn::Sequential net;
  for (int i = 0; i < 5; ++i) net->push_back(Block());
  net->to(device());
  const auto x = input();
  const auto plain = gradients_of([&](auto h) { return net->forward(h); }, *net, x);
  for (const int64_t segments : {1, 2, 3, 5}) {
    SCOPED_TRACE(segments);
    expect_same(plain, gradients_of([&](auto h) { return checkpoint_sequential(net, segments, h); },
                                    *net, x));
  }
}

TEST(ActivationCheckpoints, RunFunctionsInSegmentsAndTheLastPlainly) {
  int calls = 0;
  std::vector<std::function<torch::Tensor(torch::Tensor)>> steps(7, [&](torch::Tensor h) {
    ++calls;
    return torch::tanh(h);
  });
  const auto x = torch::randn({3}).requires_grad_();
  checkpoint_sequential(steps, 3, x, {.early_stop = false}).sum().backward();
  EXPECT_EQ(calls, 7 + 4);  // segments of 2, 2 and 3
  EXPECT_TRUE(
      contains(error_of([&] { checkpoint_sequential(steps, 8, x); }), "checkpoint_sequential()"));
  EXPECT_THROW(checkpoint_sequential(steps, 0, x), accelerant::Error);
}

}  // namespace
