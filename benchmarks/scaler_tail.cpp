// The tail of a mixed-precision step, after backward: unscale, clip, optimizer step, scale update.
//
// Compares ours with the same ATen calls written by hand and with what libtorch offers today, for
// parameters shaped like a GPT or for 10,000 tiny ones. Every iteration does real work: the scale
// is 1 + 2^-23 and the norm stays just above the limit, so gradients are unscaled and clipped each
// time but hardly change.
#include <accelerant/accelerant.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

namespace {

constexpr double kScale = 1.0 + 0x1p-23;
constexpr double kMaxNorm = 1.0;
constexpr double kLr = 1e-4;

std::vector<std::vector<int64_t>> gpt_shapes(int64_t layers, int64_t width, int64_t vocabulary,
                                             int64_t context) {
  std::vector<std::vector<int64_t>> shapes{{vocabulary, width}, {context, width}};
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const auto& shape : std::vector<std::vector<int64_t>>{{width},
                                                               {width},
                                                               {3 * width, width},
                                                               {3 * width},
                                                               {width, width},
                                                               {width},
                                                               {width},
                                                               {width},
                                                               {4 * width, width},
                                                               {4 * width},
                                                               {width, 4 * width},
                                                               {width}}) {
      shapes.push_back(shape);
    }
  }
  shapes.push_back({width});
  shapes.push_back({width});
  return shapes;
}

using Shapes = std::vector<std::vector<int64_t>>;

const std::map<std::string, Shapes>& sizes() {
  static const std::map<std::string, Shapes> made{
      {"tiny", gpt_shapes(4, 128, 65, 64)},
      {"nano", gpt_shapes(6, 384, 65, 256)},
      {"small", gpt_shapes(12, 768, 50257, 1024)},
      {"512M", {{512, 1'000'000}}},
      {"many", Shapes(10'000, {16})},
  };
  return made;
}

std::vector<at::Tensor> make_parameters(const std::string& size, at::Device device) {
  torch::manual_seed(0);
  std::vector<at::Tensor> parameters;
  for (const auto& shape : sizes().at(size)) {
    parameters.push_back(torch::randn(shape, device).mul_(0.02).requires_grad_());
    parameters.back().mutable_grad() = torch::randn(shape, device);
  }
  return parameters;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

// ATen's fused AdamW over all parameters at once, as an AMP-aware optimizer.
class FusedAdamW : public torch::optim::Optimizer, public accelerant::AmpOptimizer {
 public:
  explicit FusedAdamW(const std::vector<at::Tensor>& parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                  std::make_unique<torch::optim::AdamWOptions>(kLr)),
        parameters_(parameters) {
    for (const at::Tensor& parameter : parameters) {
      means_.push_back(torch::zeros_like(parameter).detach());
      variances_.push_back(torch::zeros_like(parameter).detach());
      steps_.push_back(torch::zeros({}, parameter.device()));
    }
  }

  at::Tensor step(LossClosure = nullptr) override { return run(std::nullopt, std::nullopt); }

  at::Tensor step(const accelerant::AmpStepControls& controls) override {
    return run(controls.grad_scale.defined() ? std::optional(controls.grad_scale) : std::nullopt,
               controls.found_inf);
  }

  at::Tensor run(const std::optional<at::Tensor>& grad_scale_or_none,
                 const std::optional<at::Tensor>& found_inf) {
    const torch::NoGradGuard no_grad;
    at::_foreach_add_(steps_, 1);
    at::_fused_adamw_(parameters_, gradients_of(parameters_), means_, variances_, {}, steps_, kLr,
                      0.9, 0.999, 1e-2, 1e-8, false, false, grad_scale_or_none, found_inf);
    if (found_inf) at::_foreach_sub_(steps_, std::vector<at::Tensor>(steps_.size(), *found_inf));
    return {};
  }

 private:
  std::vector<at::Tensor> parameters_, means_, variances_, steps_;
};

accelerant::GradScaler make_scaler(at::Device device) {
  accelerant::GradScaler scaler(
      {.device = device.type(), .init_scale = kScale, .growth_interval = 1 << 30});
  scaler.scale(torch::ones({}, device));
  return scaler;
}

// The calls that a program would make without Accelerant.
struct AtenScaler {
  explicit AtenScaler(at::Device device)
      : scale(torch::full({}, kScale, torch::TensorOptions().device(device).dtype(at::kFloat))),
        tracker(torch::zeros({}, torch::TensorOptions().device(device).dtype(at::kInt))) {}

  at::Tensor unscale(const std::vector<at::Tensor>& gradients) const {
    at::Tensor found_inf = torch::zeros({}, scale.device());
    at::_amp_foreach_non_finite_check_and_unscale_(
        gradients, found_inf, scale.to(at::kDouble).reciprocal().to(at::kFloat));
    return found_inf;
  }

  void update(const at::Tensor& found_inf) {
    at::_amp_update_scale_(scale, tracker, found_inf, 2.0, 0.5, 1 << 30);
  }

  at::Tensor scale, tracker;
};

void clip_by_aten(const std::vector<at::Tensor>& gradients) {
  const torch::NoGradGuard no_grad;
  const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients)), 2.0);
  at::_foreach_mul_(gradients, (kMaxNorm / (norm + 1e-6)).clamp_max(1.0));
}

void synchronize(at::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize();
}

// Each benchmark iteration runs this many steps with one wait at the end, so that a step that waits
// for the device pays for it and one that does not wait can run ahead.
constexpr int kStepsPerIteration = 10;

template <class Step>
void measure(benchmark::State& state, at::Device device, const Step& step) {
  for (int i = 0; i < 3; ++i) step();
  synchronize(device);
  for (auto _ : state) {
    for (int i = 0; i < kStepsPerIteration; ++i) step();
    synchronize(device);
  }
}

void fused_step(benchmark::State& state, const std::string& size, at::Device device, bool clip) {
  const auto parameters = make_parameters(size, device);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(kLr));
  accelerant::FusedStep fused(optimizer);
  auto scaler = make_scaler(device);
  measure(state, device, [&] {
    if (clip) fused.clip_grad_norm_(kMaxNorm, scaler);
    fused.step(scaler);
    scaler.update();
  });
}

// No scaler and no clipping: one pass.
void fused_step_alone(benchmark::State& state, const std::string& size, at::Device device) {
  const auto parameters = make_parameters(size, device);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(kLr));
  accelerant::FusedStep fused(optimizer);
  measure(state, device, [&] { fused.step(); });
}

void ours_fused(benchmark::State& state, const std::string& size, at::Device device, bool clip) {
  const auto parameters = make_parameters(size, device);
  FusedAdamW optimizer(parameters);
  auto scaler = make_scaler(device);
  measure(state, device, [&] {
    if (clip) {
      scaler.unscale_(optimizer);
      accelerant::clip_grad_norm_(parameters, kMaxNorm);
    }
    scaler.step(optimizer);
    scaler.update();
  });
}

void aten_fused(benchmark::State& state, const std::string& size, at::Device device, bool clip) {
  const auto parameters = make_parameters(size, device);
  FusedAdamW optimizer(parameters);
  AtenScaler scaler(device);
  measure(state, device, [&] {
    const auto gradients = gradients_of(parameters);
    const at::Tensor found_inf = scaler.unscale(gradients);
    if (clip) clip_by_aten(gradients);
    optimizer.run(std::nullopt, found_inf);
    scaler.update(found_inf);
  });
}

void ours_plain(benchmark::State& state, const std::string& size, at::Device device) {
  const auto parameters = make_parameters(size, device);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(kLr));
  auto scaler = make_scaler(device);
  measure(state, device, [&] {
    scaler.unscale_(optimizer);
    accelerant::clip_grad_norm_(parameters, kMaxNorm);
    scaler.step(optimizer);
    scaler.update();
  });
}

void stock_libtorch(benchmark::State& state, const std::string& size, at::Device device) {
  const auto parameters = make_parameters(size, device);
  torch::optim::AdamW optimizer(parameters, torch::optim::AdamWOptions(kLr));
  AtenScaler scaler(device);
  measure(state, device, [&] {
    const at::Tensor found_inf = scaler.unscale(gradients_of(parameters));
    torch::nn::utils::clip_grad_norm_(parameters, kMaxNorm);
    if (found_inf.item<float>() == 0.0F) optimizer.step();
    scaler.update(found_inf);
  });
}

void register_all(const std::string& size, at::Device device) {
  const auto add = [&](const std::string& name, auto function) {
    benchmark::RegisterBenchmark(name.c_str(), function)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  add("FusedStep, clip", [=](auto& state) { fused_step(state, size, device, true); });
  add("FusedStep, no clip", [=](auto& state) { fused_step(state, size, device, false); });
  add("FusedStep alone", [=](auto& state) { fused_step_alone(state, size, device); });
  add("ours, fused AdamW, clip", [=](auto& state) { ours_fused(state, size, device, true); });
  add("ATen calls, fused AdamW, clip", [=](auto& state) { aten_fused(state, size, device, true); });
  add("ours, fused AdamW, no clip", [=](auto& state) { ours_fused(state, size, device, false); });
  add("ATen calls, fused AdamW, no clip",
      [=](auto& state) { aten_fused(state, size, device, false); });
  add("ours, torch::optim::AdamW, clip", [=](auto& state) { ours_plain(state, size, device); });
  add("stock libtorch, clip", [=](auto& state) { stock_libtorch(state, size, device); });
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 3 || !sizes().contains(argv[1])) {
    std::fprintf(stderr,
                 "usage: bench-scaler-tail tiny|nano|small|512M|many cpu|cuda [--benchmark_...]\n");
    return 2;
  }
  benchmark::AddCustomContext("steps_per_iteration", std::to_string(kStepsPerIteration));
  register_all(argv[1], at::Device(argv[2]));
  benchmark::RunSpecifiedBenchmarks();
}
