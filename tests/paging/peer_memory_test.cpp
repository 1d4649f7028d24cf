// Units whose values are in the memory of another device. Where there is no second GPU, one device
// plays both.
#include <torch/torch.h>

#include "accelerant/core/error.h"
#include "paging/offload/peer_memory.h"
#include "paging/paged_training.h"
#include "support/expect_error.h"

namespace {

namespace nn = torch::nn;
using accelerant::paging::Pager;
using accelerant::paging::PeerMemory;
using accelerant::paging::UnitPlan;

class UnitsInPeerMemory : public OnDevice {
 protected:
  c10::Device peer() const {
    return on_cuda() && torch::cuda::device_count() > 1 ? at::Device(at::kCUDA, 1) : device();
  }

  // With memory that is freed after each operator.
  Pager paged(nn::Module& module) const {
    std::vector<UnitPlan> units = unit_per_module(module);
    for (UnitPlan& unit : units) unit.source = PeerMemory::holding(unit, peer());
    return Pager(std::move(units), {.device = device(), .budget = 0, .zero_copy = false});
  }
};
ON_EVERY_DEVICE(UnitsInPeerMemory);

TEST_P(UnitsInPeerMemory, ComeAndTakeTheirChangesBack) {
  nn::Sequential model(nn::Linear(16, 16), nn::Linear(16, 4));
  nn::Sequential plain(nn::Linear(16, 16), nn::Linear(16, 4));
  for (std::size_t i = 0; i < 4; ++i) {
    plain->parameters()[i].set_data(model->parameters()[i].to(device(), at::kFloat,
                                                              /*non_blocking=*/false,
                                                              /*copy=*/true));
  }
  Pager pager = paged(*model);
  const at::Tensor x = torch::ones({2, 16}, options());
  for (int step = 0; step < 3; ++step) {
    EXPECT_TRUE(torch::equal(model->forward(x), plain->forward(x)));
    const at::NoGradGuard no_grad;
    for (const nn::Sequential& each : {model, plain}) {
      for (at::Tensor& parameter : each->parameters()) parameter.mul_(0.5);
    }
  }
  EXPECT_EQ(pager.statistics().resident_bytes, 0U);
  EXPECT_GE(pager.statistics().write_backs, 6U);
  pager.detach();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(model->parameters()[i].is_cpu());
    EXPECT_TRUE(torch::equal(model->parameters()[i], plain->parameters()[i].cpu()));
  }
}

TEST_P(UnitsInPeerMemory, MustFitTheUnit) {
  nn::Linear layer(16, 16);
  std::vector<UnitPlan> units = unit_per_module(*layer);
  units[0].source = std::make_shared<PeerMemory>(torch::empty({8}, options(at::kByte)));
  EXPECT_TRUE(
      contains(whole_error_of([&] { Pager pager(units, {.device = device()}); }), "does not fit"));
}

}  // namespace
