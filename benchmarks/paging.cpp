// What paging costs: operators on parameters that are in memory, and units that come and go.
//
//   build/bin/bench-paging --benchmark_repetitions=5 --benchmark_report_aggregates_only
//   build/bin/bench-paging --benchmark_filter=Forward     # transfers, on a GPU if there is one
//
// Compare lines in pairs: the argument 0 stands for an ordinary tensor, 1 for a paged one.
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <vector>

#include "paging/pager.h"

namespace {

namespace nn = torch::nn;
using accelerant::paging::Pager;
using accelerant::paging::PagerOptions;

// --- Operators on parameters in memory ------------------------------------------------------------

void with_parameter(benchmark::State& state, at::IntArrayRef shape,
                    const std::function<void(const at::Tensor&)>& work) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  const at::Tensor parameter = torch::ones(shape);
  std::optional<Pager> pager;
  if (state.range(0) == 1) {
    pager.emplace(
        std::vector<accelerant::paging::UnitPlan>{
            {.name = "unit", .parameters = {{"parameter", parameter}}}},
        PagerOptions{.zero_copy = false});
  }
  for (auto _ : state) work(parameter);
}

void Add(benchmark::State& state) {
  const auto x = torch::ones({8});
  with_parameter(state, {8}, [&](const at::Tensor& p) { benchmark::DoNotOptimize(x.add(p)); });
}
void MatrixProduct(benchmark::State& state) {
  const auto x = torch::ones({4, 8});
  with_parameter(state, {8, 8}, [&](const at::Tensor& p) { benchmark::DoNotOptimize(x.mm(p)); });
}
void InPlace(benchmark::State& state) {
  with_parameter(state, {8}, [](const at::Tensor& p) { p.mul_(1); });
}
void View(benchmark::State& state) {
  with_parameter(state, {8, 8}, [](const at::Tensor& p) { benchmark::DoNotOptimize(p.t()); });
}
BENCHMARK(Add)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(MatrixProduct)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(InPlace)->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(View)->Arg(0)->Arg(1)->UseRealTime();

// A unit that comes and goes with each operator.
void Miss(benchmark::State& state) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  const at::Tensor parameter = torch::ones({1024});
  const auto x = torch::ones({8});
  Pager pager({{.name = "unit", .parameters = {{"parameter", parameter}}}},
              {.budget = 0, .prefetch = 0, .zero_copy = false});
  for (auto _ : state) benchmark::DoNotOptimize(x.add(parameter.narrow(0, 0, 8)));
}
BENCHMARK(Miss);

// --- Models that do not fit -----------------------------------------------------------------------

// A stack of layers, as large as suits the device.
struct Stack {
  // `form`: resident (0), or with a budget of four layers and `form` - 1 of them fetched ahead.
  Stack(int64_t form, int layers, int64_t width, int64_t rows) {
    const at::ScalarType type = has_cuda ? at::kBFloat16 : at::kFloat;
    for (int i = 0; i < layers; ++i) {
      model->push_back(nn::Linear(nn::LinearOptions(width, width).bias(false)));
    }
    model->to(type);
    if (form == 0) {
      model->to(device);
    } else {
      const auto units = accelerant::paging::plan_units(*model, {.smallest_unit = 0});
      const uint64_t bytes = units.front().parameters.front().parameter.nbytes();
      pager.emplace(
          units,
          PagerOptions{
              .device = device, .budget = 4 * bytes, .prefetch = form - 1, .zero_copy = false});
    }
    x = torch::ones({rows, width}, at::TensorOptions(type).device(device));
  }

  // Repeats the work. Bytes per second: of parameters that were fetched.
  void measure(benchmark::State& state, const std::function<void()>& work) {
    const auto finished = [&] {
      work();
      if (has_cuda) torch::cuda::synchronize();
    };
    for (int i = 0; i < 3; ++i) finished();
    if (pager) pager->reset_statistics();
    for (auto _ : state) finished();
    if (pager) state.SetBytesProcessed(static_cast<int64_t>(pager->statistics().fetched_bytes));
  }

  bool has_cuda = torch::cuda::is_available();
  at::Device device = has_cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  nn::Sequential model;
  std::optional<Pager> pager;
  at::Tensor x;
};

void Forward(benchmark::State& state) {
  const bool has_cuda = torch::cuda::is_available();
  const at::NoGradGuard no_grad;
  Stack stack(state.range(0), has_cuda ? 32 : 24, has_cuda ? 8192 : 1024, state.range(1));
  stack.measure(state, [&] { benchmark::DoNotOptimize(stack.model->forward(stack.x)); });
}
BENCHMARK(Forward)
    ->ArgNames({"prefetch_plus_1", "tokens"})
    ->ArgsProduct({{0, 1, 2, 3}, {16, 2048}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// The same with backward, in recorded order, at 8192 tokens (CPU: 256).
void ForwardAndBackward(benchmark::State& state) {
  const bool has_cuda = torch::cuda::is_available();
  Stack stack(state.range(0), has_cuda ? 16 : 12, has_cuda ? 8192 : 512, has_cuda ? 8192 : 256);
  stack.measure(state, [&] {
    std::optional<Pager::Iteration> iteration;
    if (stack.pager) iteration.emplace(stack.pager->begin("train"));
    stack.model->zero_grad();
    stack.model->forward(stack.x).sum().backward();
  });
}
BENCHMARK(ForwardAndBackward)
    ->ArgName("prefetch_plus_1")
    ->DenseRange(0, 3)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace

int main(int argc, char** argv) {
  benchmark::AddCustomContext("operators_per_iteration", "1");
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
}
