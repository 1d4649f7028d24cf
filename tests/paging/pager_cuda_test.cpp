// Paged parameters on a GPU: its memory, CUDA graphs.
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <thread>

#include "accelerant/paging/offload.h"
#include "compat/cuda_graph.h"
#include "paging/paged_training.h"
#include "paging/residency.h"
#include "support/expect_error.h"

#if defined(ACCELERANT_WITH_CUDA)
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace {

using accelerant::compat::CudaGraph;
using accelerant::compat::new_graph_pool;
using accelerant::paging::Pager;
using accelerant::paging::plan_units;
using accelerant::paging::Residency;
using accelerant::paging::UnitPlan;

class PagerOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device";
  }

  static c10::DeviceAllocator& allocator() {
    return dynamic_cast<c10::DeviceAllocator&>(*c10::GetAllocator(at::kCUDA));
  }
  static int64_t mebibytes(int64_t count) { return count << 20; }

  const c10::Device device{at::kCUDA, 0};
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
};

TEST_F(PagerOnCuda, TakesNoMoreThanTheBudgetBesideWhatTheModelComputes) {
  constexpr int64_t kLayers = 12;
  constexpr int64_t kWidth = 2048;  // 16 MiB each
  constexpr int64_t kRows = 64;
  torch::nn::Sequential model;
  for (int64_t i = 0; i < kLayers; ++i) {
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  for (at::Tensor& parameter : model->parameters()) parameter.requires_grad_(false);
  const int64_t budget = mebibytes(64);
  Pager pager(plan_units(*model), {.device = device, .budget = static_cast<uint64_t>(budget)});
  const at::Tensor x = torch::ones({kRows, kWidth}, options).requires_grad_();
  const auto step = [&] {
    model->forward(x).sum().backward();
    x.mutable_grad().reset();
  };
  const auto allocated = [&] {
    using c10::CachingAllocator::StatType;
    const auto stats = allocator().getDeviceStats(device.index());
    return stats.allocated_bytes[static_cast<std::size_t>(StatType::AGGREGATE)];
  };
  step();  // also makes the workspaces of cuBLAS
  pager.evict_all();
  torch::cuda::synchronize();
  const int64_t before = allocated().current;
  allocator().resetPeakStats(device.index());
  for (int i = 0; i < 3; ++i) step();
  const int64_t activations = 3 * kLayers * kRows * kWidth * int64_t{sizeof(float)};
  EXPECT_LE(allocated().peak - before, budget + activations + mebibytes(4));
  EXPECT_GT(allocated().peak - before, budget / 2);
}

TEST_F(PagerOnCuda, EndsOnTheHostWithoutTheDevice) {
  torch::nn::Linear layer(1024, 1024);
  const at::Tensor expected = layer->weight.detach().clone();
  Pager pager(plan_units(*layer), {.device = device, .budget = 0});
  {
    const at::NoGradGuard no_grad;
    layer->weight.add_(1);  // stored while it is waited for
  }
  const auto allocated = [&] {
    return allocator().getDeviceStats(device.index()).allocated_bytes[0];
  };
  allocator().resetPeakStats(device.index());
  const int64_t before = allocated().current;
  pager.detach();
  EXPECT_EQ(allocated().peak, before);
  EXPECT_TRUE(layer->weight.is_cpu());
  EXPECT_TRUE(layer->weight.equal(expected + 1));
}

class PagedGraph : public PagerOnCuda {
 protected:
  void SetUp() override {
    PagerOnCuda::SetUp();
    if (IsSkipped()) return;
    torch::manual_seed(5);
    layer = torch::nn::Linear(64, 64);
    layer->to(device);
    x = torch::randn({8, 64}, options);
    stream.emplace(c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(device));
    forward();  // before the capture
    pager = page(*layer, device, {.budget_in_units = 0, .prefetch = 0});
    torch::cuda::synchronize();
  }
  void TearDown() override {
    if (!IsSkipped()) torch::cuda::synchronize();
  }

  at::Tensor forward() {
    const torch::NoGradGuard no_grad;
    return layer(x);
  }
  std::unique_ptr<CudaGraph> capture() {
    return CudaGraph::capture(new_graph_pool(), [&] { y = forward(); });
  }

  torch::nn::Linear layer{nullptr};
  at::Tensor x, y;
  std::optional<c10::StreamGuard> stream;
  std::unique_ptr<Pager> pager;
};

TEST_F(PagedGraph, IsRefusedWhereMemoryComesAndGoes) {
  EXPECT_TRUE(contains(whole_error_of([&] { capture(); }), "A CUDA graph cannot use"));
  EXPECT_TRUE(torch::equal(forward(), layer(x)));
  EXPECT_EQ(pager->statistics().resident_bytes, 0U);
}

TEST_F(PagedGraph, UsesMemoryThatAResidencyHolds) {
  const Residency residency(*layer);
  const auto graph = capture();
  for (int i = 0; i < 3; ++i) {
    x.normal_();
    {
      const torch::NoGradGuard no_grad;
      layer->weight.add_(0.25);
    }
    pager->evict_all();  // not what is held
    graph->replay();
    EXPECT_TRUE(torch::equal(y, forward()));
  }
}

TEST_F(PagedGraph, KeepsThePagerFromGivingMemoryUp) {
  const at::Tensor weight = layer->weight.detach().cpu();
  {
    const Residency residency(*layer);
    const auto graph = capture();
    EXPECT_TRUE(contains(whole_error_of([&] { pager->detach(); }), "in use"));
    graph->replay();
    EXPECT_TRUE(torch::equal(y, forward()));
  }
  pager->detach();
  EXPECT_TRUE(torch::equal(layer->weight.cpu(), weight));
}

// What the stream did with a unit before the capture cannot be waited for during it.
TEST_F(PagerOnCuda, AnotherThreadDoesNotDisturbACapture) {
  const at::Tensor first = torch::full({256}, 1.F, options);
  const at::Tensor second = torch::full({256}, 2.F, options);
  Pager pager({{.name = "first", .parameters = {{"first", first}}},
               {.name = "second", .parameters = {{"second", second}}}},
              {.device = device, .budget = first.nbytes(), .prefetch = 0});
  at::Tensor ordinary = torch::zeros({4}, options);
  torch::cuda::synchronize();
  const c10::StreamGuard guard(
      c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(device));
  first.sum();
  ordinary.add_(1);
  torch::cuda::synchronize();
  float sum = 0;
  const auto graph = CudaGraph::capture(new_graph_pool(), [&] {
    ordinary.add_(1);
    std::thread([&] { sum = second.sum().item<float>(); }).join();
  });
  EXPECT_EQ(sum, 512);
  graph->replay();
  EXPECT_EQ(ordinary.sum().item<float>(), 8);
  EXPECT_EQ(first.sum().item<float>(), 256);
}

#if defined(ACCELERANT_WITH_CUDA)
// Room for the weights, but not for their gradients.
TEST_F(PagerOnCuda, AModelWhoseGradientsFindNoRoomStays) {
  torch::nn::Sequential model;
  for (int i = 0; i < 2; ++i) {  // 64 MiB each
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(4096, 4096).bias(false)));
  }
  for (at::Tensor& parameter : model->parameters()) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  torch::zeros({1}, options);
  torch::cuda::synchronize();
  allocator().emptyCache();
  using c10::CachingAllocator::StatType;
  const int64_t reserved = allocator()
                               .getDeviceStats(device.index())
                               .reserved_bytes[static_cast<std::size_t>(StatType::AGGREGATE)]
                               .current;
  std::size_t free = 0;
  std::size_t total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  const auto limit = [&](double fraction) {
    c10::cuda::CUDACachingAllocator::setMemoryFraction(fraction, device.index());
  };
  limit(static_cast<double>(reserved + mebibytes(160)) / static_cast<double>(total));
  EXPECT_THROW(accelerant::dispatch_model(model, {{"", 0}}), c10::OutOfMemoryError);
  limit(1);
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.is_cpu());
    EXPECT_TRUE(parameter.grad().is_cpu());
  }
  accelerant::dispatch_model(model, {{"", 0}});
  EXPECT_TRUE(model->parameters()[1].grad().is_cuda());
}
#endif

}  // namespace
