#include "accelerant/data/detail/batch_channel.h"

#include <ATen/ops/empty.h>

#include <map>
#include <utility>
#include <vector>

#include "accelerant/core/error.h"
#include "dist/exchange.h"
#include "dist/groups.h"

namespace accelerant::data {
namespace {

constexpr int kFirstTag = 1 << 20;  // away from other tags in this group

std::shared_ptr<const dist::World> alive(const std::weak_ptr<const dist::World>& world) {
  if (auto present = world.lock()) return present;
  throw Error(ErrorDetails{.problem = "A loader cannot exchange batches with the other processes",
                           .expected = "the World (or Accelerator) that placed it",
                           .got = "a World that was closed or destroyed"});
}

class WorldLine final : public BatchLine {
 public:
  WorldLine(std::weak_ptr<const dist::World> world, int tag)
      : world_(std::move(world)), tag_(tag) {}

  void send(int64_t rank, const at::Tensor& message) override {
    const auto world = alive(world_);
    dist::exchange_between_two(*world, "sending a batch", [&](dist::Groups& groups) {
      // One message ahead is enough; more would only fill memory.
      await(rank);
      at::Tensor size = at::empty({1}, at::kLong);
      *size.mutable_data_ptr<int64_t>() = message.numel();
      for (const at::Tensor& part : {size, message}) {
        std::vector<at::Tensor> tensors = {part};
        auto work = groups.control->send(tensors, static_cast<int>(rank), tag_);
        under_way_[rank].push_back({std::move(work), part});
      }
    });
  }

  void flush() override {
    if (under_way_.empty()) return;
    const auto world = alive(world_);
    dist::exchange_between_two(*world, "sending a batch", [&](dist::Groups&) {
      while (!under_way_.empty()) await(under_way_.begin()->first);
    });
  }

  at::Tensor receive() override {
    const auto world = alive(world_);
    return dist::exchange_between_two(*world, "receiving a batch", [&](dist::Groups& groups) {
      const auto read = [&](at::Tensor tensor) {
        std::vector<at::Tensor> tensors = {std::move(tensor)};
        groups.control->recv(tensors, 0, tag_)->wait();
        return tensors[0];
      };
      const at::Tensor size = read(at::empty({1}, at::kLong));
      return read(at::empty({*size.const_data_ptr<int64_t>()}, at::kByte));
    });
  }

 private:
  struct Sending {
    c10::intrusive_ptr<c10d::Work> work;
    at::Tensor message;  // must live until it is sent
  };

  void await(int64_t rank) {
    // Remove it first: do not wait again for a message that failed.
    auto sendings = under_way_.extract(rank);
    if (sendings.empty()) return;
    for (Sending& sending : sendings.mapped()) sending.work->wait();
  }

  std::weak_ptr<const dist::World> world_;
  int tag_;
  std::map<int64_t, std::vector<Sending>> under_way_;
};

class WorldChannel final : public BatchChannel {
 public:
  explicit WorldChannel(std::weak_ptr<const dist::World> world) : world_(std::move(world)) {}

  std::unique_ptr<BatchLine> open(int64_t number) override {
    return std::make_unique<WorldLine>(world_, kFirstTag + static_cast<int>(number));
  }

 private:
  std::weak_ptr<const dist::World> world_;
};

}  // namespace

std::shared_ptr<BatchChannel> batch_channel(std::shared_ptr<const dist::World> world) {
  return std::make_shared<WorldChannel>(std::move(world));
}

}  // namespace accelerant::data
