#include "accelerant/nn/layers.h"

#include <accelerant/amp/autocast.h>

#include <sstream>
#include <typeinfo>

#include "nn/mixed_linear.h"
#include "support/on_device.h"
#include "support/same_module.h"

namespace {

namespace nn = accelerant::nn;

class Linear : public OnDevice {};
ON_EVERY_DEVICE(Linear);

// The largest difference between a and b, relative to the largest value of b.
double distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor exact = b.to(at::kDouble);
  return ((a.to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
}

// Gives both modules the same numbers and runs them on the same input.
void expect_same_results(const torch::nn::LinearOptions& options, const at::Tensor& input,
                         double tolerance) {
  nn::Linear ours(options);
  torch::nn::Linear theirs(options);
  {
    const torch::NoGradGuard no_grad;
    theirs->weight.copy_(ours->weight);
    if (options.bias()) theirs->bias.copy_(ours->bias);
  }
  ours->to(input.device());
  theirs->to(input.device());
  const auto our_input = input.detach().clone().requires_grad_();
  const auto their_input = input.detach().clone().requires_grad_();
  const auto our_output = ours->forward(our_input);
  const auto their_output = theirs->forward(their_input);
  ASSERT_EQ(our_output.sizes(), their_output.sizes());
  EXPECT_EQ(our_output.scalar_type(), their_output.scalar_type());
  EXPECT_LE(distance(our_output, their_output), tolerance);

  const auto gradient = torch::randn_like(our_output);
  our_output.backward(gradient);
  their_output.backward(gradient);
  EXPECT_LE(distance(our_input.grad(), their_input.grad()), tolerance);
  EXPECT_LE(distance(ours->weight.grad(), theirs->weight.grad()), tolerance);
  if (options.bias()) {
    EXPECT_LE(distance(ours->bias.grad(), theirs->bias.grad()), tolerance);
  }
}

TEST_P(Linear, ComputesWhatTorchDoesInAnyNumberOfDimensions) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{7}, {5, 7}, {3, 5, 7}, {2, 3, 5, 7}, {2, 1, 2, 3, 7}}) {
    for (const bool bias : {true, false}) {
      SCOPED_TRACE(c10::str(shape.size(), " dimensions, bias ", bias));
      const auto linear = torch::nn::LinearOptions(7, 4).bias(bias);
      expect_same_results(linear, torch::randn(shape, options()), 1e-5);
    }
  }
}

TEST_P(Linear, ComputesWhatTorchDoesForInputThatIsNotContiguous) {
  expect_same_results({7, 4}, torch::randn({7, 5, 3}, options()).transpose(0, 2), 1e-5);
}

TEST_P(Linear, RunsIn16BitsUnderAutocast) {
  const accelerant::AutocastGuard autocast({GetParam(), at::kBFloat16});
  expect_same_results({64, 32}, torch::randn({3, 5, 64}, options()), 2e-2);
}

// What a 16-bit linear layer should give: products of the rounded numbers, with only the output
// rounded.
struct ExactLinear {
  ExactLinear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& gradient,
              at::ScalarType type) {
    const auto rounded = [&](const at::Tensor& tensor) {
      const at::Tensor exact = tensor.detach().to(type).to(at::kDouble);
      return exact.reshape({-1, exact.size(-1)});
    };
    const at::Tensor rows = rounded(gradient);
    of_input = rows.mm(rounded(weight)).view(input.sizes());
    of_weight = rows.t().mm(rounded(input));
    of_bias = rows.sum(0);
  }

  at::Tensor of_input;
  at::Tensor of_weight;
  at::Tensor of_bias;
};

TEST_P(Linear, DoesNotRoundGradientsUnderAutocast) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const bool has_bias : {true, false}) {
      for (const bool is_cast_before : {false, true}) {
        SCOPED_TRACE(c10::str(type, ", bias ", has_bias, ", input cast before ", is_cast_before));
        const accelerant::AutocastGuard autocast({GetParam(), type});
        const auto leaf = [&](at::IntArrayRef shape, at::ScalarType of) {
          return torch::randn(shape, options()).to(of).requires_grad_();
        };
        const auto input = leaf({4, 6, 32}, is_cast_before ? type : at::kFloat);
        const auto weight = leaf({16, 32}, at::kFloat);
        const auto bias = has_bias ? leaf({16}, at::kFloat) : at::Tensor();
        const auto output = nn::mixed_linear(input, weight, bias, type);
        EXPECT_TRUE(output.equal(at::linear(input, weight, bias)));

        // As from a transposed view.
        const auto gradient = torch::randn({16, 6, 4}, options()).to(type).permute({2, 1, 0});
        output.backward(gradient);
        const ExactLinear exact(input, weight, gradient, type);
        // A CPU has no products that write a different type than they read.
        const double rounding = type == at::kHalf ? 1e-3 : 8e-3;
        const double tolerance = on_cuda() ? 1e-5 : rounding;
        EXPECT_EQ(input.grad().scalar_type(), input.scalar_type());
        EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
        EXPECT_LE(distance(input.grad(), exact.of_input), is_cast_before ? rounding : tolerance);
        EXPECT_LE(distance(weight.grad(), exact.of_weight), tolerance);
        if (has_bias) {
          EXPECT_LE(distance(bias.grad(), exact.of_bias), tolerance);
        }
      }
    }
  }
}

// As in a gradient penalty.
TEST_P(Linear, HasGradientsOfGradientsUnderAutocast) {
  const accelerant::AutocastGuard autocast({GetParam(), at::kBFloat16});
  const auto input = torch::randn({3, 8}, options()).requires_grad_();
  const auto weight = torch::randn({4, 8}, options()).requires_grad_();
  const auto bias = torch::randn({4}, options()).requires_grad_();
  const auto penalty_of = [&](const auto& linear) {
    const auto output = linear(input).pow(3).sum();
    const auto gradients =
        torch::autograd::grad({output}, {input, weight, bias}, {}, /*retain_graph=*/true,
                              /*create_graph=*/true);
    auto penalty = torch::zeros({}, options());
    for (const at::Tensor& gradient : gradients) penalty = penalty + gradient.pow(2).sum();
    return torch::autograd::grad({penalty}, {input, weight, bias});
  };
  const auto ours = penalty_of(
      [&](const at::Tensor& x) { return nn::mixed_linear(x, weight, bias, at::kBFloat16); });
  const auto theirs = penalty_of([&](const at::Tensor& x) { return at::linear(x, weight, bias); });
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LE(distance(ours[i], theirs[i]), 2e-2) << i;
  }
}

TEST_P(Linear, TakesEitherTypeOf16BitsUnderAutocast) {
  const accelerant::AutocastGuard autocast({GetParam(), at::kHalf});
  const auto leaf = [&](at::IntArrayRef shape) {
    return torch::randn(shape, options(at::kBFloat16)).requires_grad_();
  };
  const auto input = leaf({3, 8});
  const auto weight = leaf({4, 8});
  const auto bias = leaf({4});
  nn::mixed_linear(input, weight, bias, at::kHalf).sum().backward();
  for (const at::Tensor& tensor : {input, weight, bias}) {
    EXPECT_EQ(tensor.grad().scalar_type(), at::kBFloat16);
  }
  EXPECT_LE(distance(weight.grad(), input.detach().sum(0).expand({4, 8})), 2e-2);
}

// As with model outputs that the loss leaves out.
TEST_P(Linear, HasNoGradientsWithoutAGradientOfItsOutput) {
  struct Nothing : torch::autograd::Function<Nothing> {
    static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
      return x.clone();
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                   const torch::autograd::variable_list&) {
      return {at::Tensor()};
    }
  };
  const accelerant::AutocastGuard autocast({GetParam(), at::kBFloat16});
  const auto weight = torch::randn({4, 8}, options()).requires_grad_();
  const auto output = nn::mixed_linear(torch::randn({3, 8}, options()), weight, {}, at::kBFloat16);
  Nothing::apply(output).sum().backward();
  EXPECT_FALSE(weight.grad().defined());
}

TEST_P(Linear, SumsGradientsOfAWeightThatIsUsedTwice) {
  const accelerant::AutocastGuard autocast({GetParam(), at::kBFloat16});
  const auto weight = torch::randn({8, 8}, options()).requires_grad_();
  const auto bias = torch::randn({8}, options());  // not trained
  const auto x = torch::randn({3, 8}, options());
  const auto gradient_of = [&](const auto& linear) {
    const auto output = linear(linear(x));
    return torch::autograd::grad({output.sum()}, {weight})[0];
  };
  const auto ours = gradient_of(
      [&](const at::Tensor& in) { return nn::mixed_linear(in, weight, bias, at::kBFloat16); });
  const auto theirs =
      gradient_of([&](const at::Tensor& in) { return at::linear(in, weight, bias); });
  EXPECT_LE(distance(ours, theirs), 2e-2);
}

TEST_P(Linear, IsTorchsOwnWhereNothingIsToBeGained) {
  const auto input = torch::randn({3, 8}, options());
  const auto weight = torch::randn({4, 8}, options()).requires_grad_();
  const auto is_mixed = [&](const at::Tensor& x, const at::Tensor& w) {
    return nn::type_of_mixed_linear(x, w, {}).has_value();
  };
  EXPECT_FALSE(is_mixed(input, weight)) << "no autocast";
  const accelerant::AutocastGuard autocast({GetParam(), at::kBFloat16});
  EXPECT_EQ(is_mixed(input, weight), on_cuda());
  EXPECT_FALSE(is_mixed(input, weight.detach()));
  EXPECT_FALSE(is_mixed(input[0], weight));
  EXPECT_FALSE(is_mixed(input.to(at::kDouble), weight));
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(is_mixed(input, weight));
}

TEST(LinearModule, DrawsTheNumbersOfTorch) {
  torch::manual_seed(7);
  const nn::Linear ours(12, 5);
  const auto after_ours = torch::rand({1});
  torch::manual_seed(7);
  const torch::nn::Linear theirs(12, 5);
  expect_same_module(*ours, *theirs);
  EXPECT_TRUE(torch::equal(after_ours, torch::rand({1})));
}

TEST(LinearModule, IsATorchLinear) {
  const nn::Linear ours(3, 2);
  const torch::nn::Module& module = *ours;
  ASSERT_NE(module.as<torch::nn::Linear>(), nullptr);
  EXPECT_NE(module.as<nn::Linear>(), nullptr);
  EXPECT_EQ(torch::nn::Linear(3, 2)->as<nn::Linear>(), nullptr);
  std::ostringstream text;
  text << *ours;
  EXPECT_EQ(text.str(), "accelerant::nn::Linear(in_features=3, out_features=2, bias=true)");
}

TEST(LinearModule, ExchangesWeightsWithTorch) {
  nn::Linear ours(3, 2);
  torch::nn::Linear theirs(3, 2);
  std::stringstream archive;
  torch::save(theirs, archive);
  torch::load(ours, archive);
  expect_same_module(*ours, *theirs);
}

TEST(LinearModule, ClonesAsItself) {
  for (const bool bias : {true, false}) {
    nn::Linear original(torch::nn::LinearOptions(3, 2).bias(bias));
    original->eval();
    const auto copy = original->clone();
    EXPECT_EQ(typeid(*copy), typeid(nn::LinearImpl));
    EXPECT_FALSE(copy->is_training());
    expect_same_module(*original, *copy);
    {
      const torch::NoGradGuard no_grad;
      copy->as<nn::Linear>()->weight.zero_();
    }
    EXPECT_FALSE(torch::equal(original->weight, copy->as<nn::Linear>()->weight));
    EXPECT_TRUE(copy->as<nn::Linear>()->weight.requires_grad());
  }
}

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  nn::Linear layer = nullptr;
  NetImpl() { reset(); }
  void reset() override { layer = register_module("layer", nn::Linear(3, 2)); }
};

TEST(LinearModule, ClonesInsideOfAModule) {
  const auto net = std::make_shared<NetImpl>();
  const auto copy = std::dynamic_pointer_cast<NetImpl>(net->clone());
  expect_same_module(*net, *copy);
  const auto x = torch::randn({2, 4, 3});
  EXPECT_TRUE(torch::equal(net->layer->forward(x), copy->layer->forward(x)));
  EXPECT_NE(net->layer->weight.data_ptr(), copy->layer->weight.data_ptr());
}

TEST(LinearModule, KeepsItsForwardInSequential) {
  torch::nn::Sequential net(nn::Linear(3, 4), torch::nn::ReLU(), nn::Linear(4, 2));
  const auto output = net->forward(torch::randn({2, 5, 3}));
  // A separate addition would be the last node of the graph.
  EXPECT_EQ(output.grad_fn()->name().find("Add"), std::string::npos) << output.grad_fn()->name();
  EXPECT_NE(torch::nn::Linear(3, 2)->forward(torch::randn({2, 5, 3})).grad_fn()->name().find("Add"),
            std::string::npos);
}

}  // namespace
