// Inputs of checkpoints in host memory: the same gradients, bit for bit.
#include "nn/offloaded_inputs.h"

#include <accelerant/nn/activation_checkpoint.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "support/expect_error.h"
#include "support/on_device.h"

namespace {

using accelerant::nn::checkpoint;
using accelerant::nn::CheckpointOptions;
using accelerant::nn::detail::ActivationOffloadScope;
using accelerant::nn::detail::offloads_on_every_device;

// The CPU plays a device of its own, so that its inputs are copied, too.
class OffloadedInputs : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    offloads_on_every_device() = true;
  }
  void TearDown() override { offloads_on_every_device() = false; }

  struct Block : torch::nn::Module {
    explicit Block(int64_t width)
        : linear(register_module("linear", torch::nn::Linear(width, width))) {}
    at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
      return x + torch::dropout(linear(x * mask).tanh(), 0.3, /*train=*/true);
    }
    torch::nn::Linear linear;
  };

  // `wide`: large enough that a missing wait shows.
  std::vector<std::shared_ptr<Block>> blocks(int64_t count) const {
    torch::manual_seed(3);
    std::vector<std::shared_ptr<Block>> made;
    for (int64_t i = 0; i < count; ++i) {
      made.push_back(std::make_shared<Block>(width()));
      made.back()->to(device());
    }
    return made;
  }
  int64_t width() const { return on_cuda() ? 1024 : 8; }
  int64_t rows() const { return on_cuda() ? 4096 : 4; }

  using Chain = std::function<at::Tensor(std::vector<std::shared_ptr<Block>>&, at::Tensor,
                                         const at::Tensor&)>;

  // The gradients of the input and of all weights, and the loss.
  std::vector<at::Tensor> gradients(const Chain& chain, int64_t count = 6, int backwards = 1) {
    auto made = blocks(count);
    torch::manual_seed(7);
    const at::Tensor x = torch::randn({rows(), width()}).to(device()).requires_grad_();
    const at::Tensor mask = torch::rand({rows(), width()}).to(device()).gt(0.2).to(at::kFloat);
    const at::Tensor loss = chain(made, x * 2, mask).square().mean();
    for (int i = 0; i < backwards; ++i) {
      loss.backward({}, /*retain_graph=*/i + 1 < backwards);
    }
    std::vector<at::Tensor> found = {loss.detach().cpu(), x.grad().cpu()};
    for (const auto& block : made) found.push_back(block->linear->weight.grad().cpu());
    return found;
  }

  static Chain every_block(CheckpointOptions options) {
    return [options](auto& made, at::Tensor x, const at::Tensor& mask) {
      for (auto& block : made) x = checkpoint(options, block, x, mask);
      return x;
    };
  }

  static void expect_same(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want) {
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << i;
  }
};

TEST_P(OffloadedInputs, GiveTheSameGradients) {
  for (const int backwards : {1, 2}) {
    const auto want = gradients(every_block({.offload_inputs = false}), 6, backwards);
    for (int repeat = 0; repeat < (on_cuda() ? 10 : 1); ++repeat) {
      expect_same(gradients(every_block({.offload_inputs = true}), 6, backwards), want);
    }
  }
}

TEST_P(OffloadedInputs, FollowTheScopeUnlessToldOtherwise) {
  const auto is_taken = [&](std::optional<bool> option) {
    const at::Tensor x = full({rows(), width()}, 1).requires_grad_();
    const at::Tensor input = x * 2;
    at::Tensor y = checkpoint(
        CheckpointOptions{.offload_inputs = option}, [](const at::Tensor& h) { return h.sin(); },
        at::Tensor(input));
    // Whether only this function still holds the input.
    const bool is_free = input.use_count() == 1;
    y.sum().backward();
    return is_free;
  };
  EXPECT_FALSE(is_taken(std::nullopt));
  EXPECT_TRUE(is_taken(true));
  const ActivationOffloadScope scope(true);
  EXPECT_TRUE(is_taken(std::nullopt));
  EXPECT_FALSE(is_taken(false));
  const ActivationOffloadScope inner(false);
  EXPECT_FALSE(is_taken(std::nullopt));
}

// The outer checkpoint drops what the inner ones save, and recomputes it without copies.
TEST_P(OffloadedInputs, MayBeNested) {
  const auto nested = [](bool offload) {
    return Chain([offload](auto& made, at::Tensor x, const at::Tensor& mask) {
      const CheckpointOptions options{.offload_inputs = offload};
      for (std::size_t i = 0; i + 1 < made.size(); i += 2) {
        auto pair = [first = made[i], second = made[i + 1], options](const at::Tensor& h,
                                                                     const at::Tensor& m) {
          return checkpoint(options, second, checkpoint(options, first, h, m), m);
        };
        x = checkpoint(options, pair, x, mask);
      }
      return x;
    });
  };
  expect_same(gradients(nested(true)), gradients(nested(false)));
}

TEST_P(OffloadedInputs, ChangesInPlaceAreNoticed) {
  const at::Tensor x = full({rows(), width()}, 1).requires_grad_();
  at::Tensor input = x * 2;
  const at::Tensor y = checkpoint(
      CheckpointOptions{.offload_inputs = true}, [](const at::Tensor& h) { return h.sin(); },
      input);
  {
    const torch::NoGradGuard no_grad;
    input.add_(1);
  }
  EXPECT_TRUE(contains(whole_error_of([&] { y.sum().backward(); }), "changed in place"));
}

// A graph may die in the middle of a backward, or without one.
TEST_P(OffloadedInputs, MayNeverBeNeeded) {
  auto made = blocks(4);
  const at::Tensor mask = full({rows(), width()}, 1);
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = full({rows(), width()}, 1).requires_grad_();
    at::Tensor h = x * 2;
    std::vector<at::Tensor> outputs;
    for (auto& block : made) {
      outputs.push_back(h = checkpoint(CheckpointOptions{.offload_inputs = true}, block, h, mask));
    }
    if (i == 1) torch::autograd::grad({h.sum()}, {outputs[1]});  // brings one more back
  }
}

ON_EVERY_DEVICE(OffloadedInputs);

// Fails once for a tensor of a given size, as a device without room does.
class SmallMemory final : public c10::Allocator {
 public:
  SmallMemory() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 1); }
  ~SmallMemory() override { c10::SetCPUAllocator(inner_, 1); }
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes != 0 && bytes == refused) {
      refused = 0;
      TORCH_CHECK_WITH(OutOfMemoryError, false, "no room for ", bytes, " bytes");
    }
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  std::size_t refused = 0;

 private:
  c10::Allocator* inner_;
};

TEST(OffloadedInputsErrors, WithoutRoomForTheNextInputItComesLater) {
  offloads_on_every_device() = true;
  const CheckpointOptions options{.offload_inputs = true};
  const auto sine = [](const at::Tensor& h) { return h.sin(); };
  const auto gradient = [&](SmallMemory* memory) {
    const at::Tensor x = torch::linspace(0, 1, 35).requires_grad_();
    const at::Tensor first = checkpoint(options, sine, x * 2);
    const at::Tensor y = checkpoint(options, sine, torch::cat({first, first}));
    const at::Tensor loss = y.sum();
    if (memory != nullptr) memory->refused = 35 * sizeof(float);
    loss.backward();
    return x.grad();
  };
  const at::Tensor expected = gradient(nullptr);
  SmallMemory memory;
  EXPECT_TRUE(torch::equal(gradient(&memory), expected));
  EXPECT_EQ(memory.refused, 0U) << "it was refused once";
  offloads_on_every_device() = false;
}

}  // namespace
