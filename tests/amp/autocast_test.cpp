#include "accelerant/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <accelerant/amp/autocast.h>
#include <accelerant/tensor/nested.h>

#include <thread>

#include "support/expect_error.h"
#include "support/on_device.h"

namespace {

using accelerant::AutocastGuard;
using accelerant::AutocastState;

class Autocast : public OnDevice {
 protected:
  // The type in which a matrix product runs right now.
  at::ScalarType product_type() const {
    return torch::mm(full({2, 2}, 1), full({2, 2}, 1)).scalar_type();
  }
};
ON_EVERY_DEVICE(Autocast);

TEST_P(Autocast, RunsProductsIn16Bits) {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    {
      const AutocastGuard guard({GetParam(), type});
      EXPECT_EQ(product_type(), type);
      EXPECT_TRUE(accelerant::is_autocast_enabled(GetParam()));
      EXPECT_EQ(accelerant::get_autocast_dtype(GetParam()), type);
    }
    EXPECT_FALSE(accelerant::is_autocast_enabled(GetParam()));
    EXPECT_EQ(product_type(), at::kFloat);
  }
}

TEST_P(Autocast, DefaultTypeIsTheDevices) {
  const AutocastGuard guard({.device_type = GetParam()});
  EXPECT_EQ(product_type(), on_cuda() ? at::kHalf : at::kBFloat16);
}

TEST_P(Autocast, Nests) {
  const AutocastGuard outer({GetParam(), at::kHalf});
  {
    const AutocastGuard off({.device_type = GetParam(), .enabled = false});
    EXPECT_EQ(product_type(), at::kFloat);
    {
      const AutocastGuard on({GetParam(), at::kBFloat16});
      EXPECT_EQ(product_type(), at::kBFloat16);
    }
    EXPECT_EQ(product_type(), at::kFloat);
  }
  EXPECT_EQ(product_type(), at::kHalf);
}

TEST_P(Autocast, RestoredWhenAnExceptionLeaves) {
  try {
    const AutocastGuard guard(
        {.device_type = GetParam(), .dtype = at::kHalf, .cache_enabled = false});
    throw std::runtime_error("out");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(product_type(), at::kFloat);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  EXPECT_EQ(at::autocast::increment_nesting(), 1);  // the depth is back at zero
  at::autocast::decrement_nesting();
}

TEST_P(Autocast, CacheFlagIsSetAndRestored) {
  const AutocastGuard outer({.device_type = GetParam(), .cache_enabled = false});
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
  {
    const AutocastGuard inherits({.device_type = GetParam()});
    EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    const AutocastGuard on({.device_type = GetParam(), .cache_enabled = true});
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  }
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
}

// Forward, then a step that writes the weight in place, then forward again.
double output_after_step(
    const std::function<at::Tensor(const std::function<at::Tensor()>&)>& under_autocast,
    at::Device device) {
  at::Tensor weight = torch::ones({1, 1}, device).requires_grad_();
  const at::Tensor input = torch::ones({1, 1}, device);
  const auto forward = [&] { return torch::mm(input, weight); };
  under_autocast(forward);
  {
    const torch::NoGradGuard no_grad;
    weight.add_(1.0);  // what an optimizer does
  }
  return under_autocast(forward).item<double>();
}

TEST_P(Autocast, WeightsAreNotStaleAfterAStep) {
  EXPECT_EQ(output_after_step(
                [&](const auto& forward) {
                  return accelerant::with_autocast({GetParam(), at::kHalf}, forward);
                },
                device()),
            2.0);
}

// The same without the guard's bookkeeping, to show that the problem is real.
TEST_P(Autocast, WithoutTheGuardWeightsGoStale) {
  EXPECT_EQ(output_after_step(
                [&](const auto& forward) {
                  at::autocast::set_autocast_dtype(GetParam(), at::kHalf);
                  at::autocast::set_autocast_enabled(GetParam(), true);
                  at::Tensor output = forward();
                  at::autocast::set_autocast_enabled(GetParam(), false);
                  return output;
                },
                device()),
            1.0);
  at::autocast::clear_cache();
  at::autocast::set_autocast_dtype(GetParam(), on_cuda() ? at::kHalf : at::kBFloat16);
}

TEST_P(Autocast, InnerGuardKeepsTheCacheOfTheOuter) {
  const at::Tensor weight = full({1, 1}, 1.0).requires_grad_();
  const AutocastGuard outer({GetParam(), at::kHalf});
  torch::mm(weight, weight);
  { const AutocastGuard inner({GetParam(), at::kHalf}); }
  {
    const torch::NoGradGuard no_grad;
    weight.add_(1.0);
  }
  EXPECT_EQ(torch::mm(full({1, 1}, 1), weight).item<double>(), 1.0);  // cached: still inside
}

TEST_P(Autocast, UnsupportedTypesAreRefusedByName) {
  for (const auto type : {at::kFloat, at::kDouble, at::kLong}) {
    const std::string text = error_of([&] { AutocastGuard guard({GetParam(), type}); });
    EXPECT_TRUE(contains(text, c10::toString(type)));
    EXPECT_TRUE(contains(text, "Half or BFloat16"));
  }
  EXPECT_EQ(product_type(), at::kFloat);
  EXPECT_NO_THROW(
      AutocastGuard({.device_type = GetParam(), .dtype = at::kFloat, .enabled = false}));
}

TEST(AutocastWithoutDevice, AbsentDevicesAreRefusedByName) {
  EXPECT_TRUE(contains(error_of([] { AutocastGuard guard({at::kMeta, at::kHalf}); }), "meta"));
  EXPECT_TRUE(contains(error_of([] { AutocastGuard guard({at::kXPU, at::kHalf}); }), "xpu"));
  if (torch::cuda::is_available()) return;
  EXPECT_TRUE(contains(error_of([] { AutocastGuard guard({at::kCUDA, at::kHalf}); }), "cuda"));
  EXPECT_NO_THROW(AutocastGuard({.device_type = at::kCUDA, .enabled = false}));
}

TEST(AutocastWithoutDevice, Availability) {
  EXPECT_TRUE(accelerant::is_autocast_available(at::kCPU));
  EXPECT_TRUE(accelerant::is_autocast_available(at::kCUDA));
  EXPECT_FALSE(accelerant::is_autocast_available(at::kMeta));
}

TEST_P(Autocast, ThreadsStartWithoutItAndCanTakeItOver) {
  const AutocastGuard guard(
      {.device_type = GetParam(), .dtype = at::kHalf, .cache_enabled = false});
  const AutocastState state = AutocastState::capture();
  at::ScalarType plain = at::kByte;
  at::ScalarType carried = at::kByte;
  at::ScalarType after = at::kByte;
  bool cache = true;
  std::thread([&] {
    plain = product_type();
    {
      const AutocastGuard continued(state);
      carried = product_type();
      cache = at::autocast::is_autocast_cache_enabled();
    }
    after = product_type();
  }).join();
  EXPECT_EQ(plain, at::kFloat);
  EXPECT_EQ(carried, at::kHalf);
  EXPECT_FALSE(cache);
  EXPECT_EQ(after, at::kFloat);
}

// A product that records the types its forward and backward ran in.
struct Probe : torch::autograd::Function<Probe> {
  static inline at::ScalarType forward_type, backward_type, input_type;

  static at::Tensor forward(torch::autograd::AutogradContext* ctx, at::Tensor a, at::Tensor b,
                            int64_t device, bool cast) {
    const auto device_type = static_cast<at::DeviceType>(device);
    ctx->save_for_backward({a, b});
    return accelerant::custom_fwd(
        ctx,
        {.device_type = device_type,
         .cast_inputs = cast ? std::optional(at::kFloat) : std::nullopt},
        [](const at::Tensor& x, const at::Tensor& y) {
          at::Tensor product = x.mm(y);
          input_type = x.scalar_type();
          forward_type = product.scalar_type();
          return product;
        },
        a, b);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    return accelerant::custom_bwd(ctx, [&]() -> torch::autograd::variable_list {
      const auto saved = ctx->get_saved_variables();
      const at::Tensor grad_a = grads[0].to(at::kFloat).mm(saved[1].to(at::kFloat).t());
      backward_type = grad_a.scalar_type();
      return {grad_a, saved[0].to(at::kFloat).t().mm(grads[0].to(at::kFloat)), at::Tensor(),
              at::Tensor()};
    });
  }
};

TEST_P(Autocast, CustomFunctionsRunBackwardLikeForward) {
  const auto run = [&](bool enabled, bool cast) {
    const at::Tensor a = full({2, 2}, 1.0).requires_grad_();
    const at::Tensor b = full({2, 2}, 1.0).requires_grad_();
    at::Tensor output;
    {
      const AutocastGuard guard(
          {.device_type = GetParam(), .dtype = at::kHalf, .enabled = enabled});
      output = Probe::apply(a, b, static_cast<int64_t>(GetParam()), cast);
    }
    output.sum().backward();
  };
  run(/*enabled=*/true, /*cast=*/false);
  EXPECT_EQ(Probe::forward_type, at::kHalf);
  EXPECT_EQ(Probe::backward_type, at::kHalf);
  run(/*enabled=*/false, /*cast=*/false);
  EXPECT_EQ(Probe::forward_type, at::kFloat);
  EXPECT_EQ(Probe::backward_type, at::kFloat);
  run(/*enabled=*/true, /*cast=*/true);
  EXPECT_EQ(Probe::forward_type, at::kFloat);
  EXPECT_EQ(Probe::backward_type, at::kFloat);
}

TEST_P(Autocast, CustomFunctionsCastEligibleInputsOnly) {
  const auto cast = [&](const at::Tensor& input) {
    return accelerant::detail::cast_input(input, GetParam(), at::kHalf).scalar_type();
  };
  EXPECT_EQ(cast(full({1}, 1)), at::kHalf);
  EXPECT_EQ(cast(full({1}, 1, at::kDouble)), at::kDouble);
  EXPECT_EQ(cast(full({1}, 1, at::kLong)), at::kLong);
  EXPECT_EQ(cast(torch::ones({1}, at::kMeta)), at::kFloat);
}

TEST_P(Autocast, CustomBackwardWithoutForwardIsAnError) {
  struct Lonely : torch::autograd::Function<Lonely> {
    static at::Tensor forward(torch::autograd::AutogradContext*, at::Tensor x) { return x.clone(); }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                   torch::autograd::variable_list grads) {
      return accelerant::custom_bwd(ctx, [&] { return grads; });
    }
  };
  const at::Tensor output = Lonely::apply(full({1}, 1.0).requires_grad_());
  EXPECT_TRUE(contains(error_of([&] { output.sum().backward(); }), "custom_fwd"));
}

}  // namespace
