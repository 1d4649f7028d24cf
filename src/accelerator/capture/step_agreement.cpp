#include "accelerator/capture/step_agreement.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "accelerant/core/error.h"
#include "accelerator/fingerprint.h"
#include "dist/transport.h"

namespace accelerant::detail {
namespace {

// The kind of a message. A process that left a call by an exception sends a different kind than the
// others.
constexpr int64_t kOffer = 1;
constexpr int64_t kCaptured = 2;

using Message = std::array<int64_t, 4>;  // the first number is the kind

std::vector<Message> exchanged(const dist::World& world, const Message& own) {
  if (world.size() == 1) return {own};
  constexpr auto kNumbers = static_cast<int64_t>(std::tuple_size_v<Message>);
  at::Tensor all = at::empty({world.size() * kNumbers}, at::kLong);
  dist::all_gather(world, dist::Channel::control, "agreeing on a captured step", all,
                   at::tensor(own));
  std::vector<Message> messages(static_cast<std::size_t>(world.size()));
  const int64_t* next = all.const_data_ptr<int64_t>();
  for (Message& message : messages) {
    std::copy_n(next, kNumbers, message.begin());
    next += kNumbers;
    if (message.front() == own.front()) continue;
    throw Error("Processes are at different points of a captured step",
                "if a step throws in one process, end that process: the others wait for it");
  }
  return messages;
}

}  // namespace

StepAgreement agree(const dist::World& world, const StepProposal& own) {
  StepAgreement agreement{.offer = StepOffer::capture};
  std::size_t keys = 0;
  for (const auto& [what, offer, key, lost_graphs] :
       exchanged(world, {kOffer, static_cast<int64_t>(own.offer), std::bit_cast<int64_t>(own.key),
                         own.lost_graphs ? 1 : 0})) {
    agreement.offer = std::min(agreement.offer, static_cast<StepOffer>(offer));
    agreement.lost_graphs = agreement.lost_graphs || lost_graphs != 0;
    mix(keys, std::bit_cast<std::size_t>(key));
  }
  agreement.keys = keys;
  return agreement;
}

bool have_all_captured(const dist::World& world, bool own) {
  const auto all = exchanged(world, {kCaptured, own ? 1 : 0, 0, 0});
  return std::ranges::all_of(all, [](const Message& message) { return message[1] != 0; });
}

}  // namespace accelerant::detail
