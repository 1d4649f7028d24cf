#include "accelerant/data/batch_channel.h"

#include <ATen/ops/empty.h>

#include <map>
#include <utility>
#include <vector>

#include "accelerant/core/error.h"
#include "dist/exchange.h"
#include "dist/groups.h"

namespace accelerant::data {
namespace {

// Away from tags that others may use in this group.
constexpr int kAnnouncements = 1 << 20;
constexpr int kFirstLine = kAnnouncements + 1;

std::shared_ptr<const dist::World> alive(const std::weak_ptr<const dist::World>& world) {
  if (auto present = world.lock()) return present;
  throw Error(ErrorDetails{.problem = "A loader cannot exchange batches with the other processes",
                           .expected = "the World (or Accelerator) it was placed by",
                           .got = "one that is gone"});
}

struct Sending {
  c10::intrusive_ptr<c10d::Work> work;
  at::Tensor message;  // must stay until it is sent
};

// The size of a message, then the message.
std::vector<Sending> begin_sending(dist::Groups& groups, int64_t rank, int tag,
                                   const at::Tensor& message) {
  at::Tensor size = at::empty({1}, at::kLong);
  *size.mutable_data_ptr<int64_t>() = message.numel();
  std::vector<Sending> sendings;
  for (const at::Tensor& part : {size, message}) {
    std::vector<at::Tensor> tensors = {part};
    auto work = groups.control->send(tensors, static_cast<int>(rank), tag);
    sendings.push_back({std::move(work), part});
  }
  return sendings;
}

at::Tensor read_message(dist::Groups& groups, int64_t rank, int tag) {
  const auto read = [&](at::Tensor tensor) {
    std::vector<at::Tensor> tensors = {std::move(tensor)};
    groups.control->recv(tensors, static_cast<int>(rank), tag)->wait();
    return tensors[0];
  };
  const at::Tensor size = read(at::empty({1}, at::kLong));
  return read(at::empty({*size.const_data_ptr<int64_t>()}, at::kByte));
}

class WorldLine final : public BatchLine {
 public:
  WorldLine(std::weak_ptr<const dist::World> world, int tag)
      : world_(std::move(world)), tag_(tag) {}

  void send(int64_t rank, const at::Tensor& message) override {
    const auto world = alive(world_);
    dist::exchange_between_two(*world, "sending a batch", [&](dist::Groups& groups) {
      // One message ahead is enough, and more would only fill memory.
      await(rank);
      under_way_[rank] = begin_sending(groups, rank, tag_, message);
    });
  }

  void flush(int64_t rank) override {
    if (!under_way_.contains(rank)) return;
    const auto world = alive(world_);
    dist::exchange_between_two(*world, "sending a batch", [&](dist::Groups&) { await(rank); });
  }

  at::Tensor receive() override {
    const auto world = alive(world_);
    return dist::exchange_between_two(*world, "receiving a batch", [&](dist::Groups& groups) {
      return read_message(groups, 0, tag_);
    });
  }

 private:
  void await(int64_t rank) {
    // Taken out first: what failed once is not waited for again.
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

  std::unique_ptr<BatchLine> open(int64_t loader) override {
    return std::make_unique<WorldLine>(world_, kFirstLine + static_cast<int>(loader));
  }

  void announce(const at::Tensor& message) override {
    const auto world = alive(world_);
    dist::exchange_between_two(*world, "beginning a loop over a loader", [&](dist::Groups& groups) {
      // Rank 0 has heard the one before: it came before the batches of that loop.
      for (Sending& sending : std::exchange(announced_, {})) sending.work->wait();
      announced_ = begin_sending(groups, 0, kAnnouncements, message);
    });
  }

  at::Tensor await_announcement(int64_t rank) override {
    const auto world = alive(world_);
    return dist::exchange_between_two(
        *world, "beginning a loop over a loader",
        [&](dist::Groups& groups) { return read_message(groups, rank, kAnnouncements); });
  }

 private:
  std::weak_ptr<const dist::World> world_;
  std::vector<Sending> announced_;
};

}  // namespace

std::shared_ptr<BatchChannel> batch_channel(std::shared_ptr<const dist::World> world) {
  return std::make_shared<WorldChannel>(std::move(world));
}

}  // namespace accelerant::data
