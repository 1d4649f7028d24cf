#include "accelerator/loop/nonfinite_stop.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "accelerant/core/error.h"
#include "accelerant/dist/collectives.h"
#include "accelerator/core.h"
#include "accelerator/prepared/optimizer_state.h"
#include "amp/gradient_guard.h"

namespace accelerant::detail {
namespace {

// Of each process.
constexpr std::size_t kMostParametersShown = 5;

// The first parameters of the report, one per line.
std::string first_lines(OverflowReport report) {
  const std::size_t all = report.parameters.size();
  if (all > kMostParametersShown) report.parameters.resize(kMostParametersShown);
  std::string text = report.to_string();
  if (all > kMostParametersShown) {
    text += c10::str("and ", all - kMostParametersShown, " more\n");
  }
  return text;
}

// What all processes found, the same text in each of them.
std::string lines_of_all(const Core& core, const std::string& own) {
  std::string text;
  if (core.world->size() == 1) {
    text = own;
  } else {
    const auto lines = dist::gather_object(*core.world, own);
    for (std::size_t rank = 0; rank < lines.size(); ++rank) {
      const auto found = lines[rank].get<std::string>();
      if (!found.empty()) text += c10::str("rank ", rank, ":\n", found);
    }
  }
  // The checks of a captured step share memory with those of its later replays.
  if (text.empty()) return "inf or nan in gradients that are not known any more";
  text.pop_back();
  return "inf or nan in the gradients of\n" + text;
}

}  // namespace

bool NonfiniteStop::is_on() const {
  return GuardAccess::role(core_.scaler).stops && core_.scaler.is_enabled();
}

void NonfiniteStop::note_update() {
  const c10::Device device = *core_.options.device;
  if (!is_on() || device.is_cpu()) return;
  const int64_t number = GuardAccess::queued_updates(core_.scaler);
  auto& slot = queued_[static_cast<std::size_t>(number) % queued_.size()];
  if (!slot) slot.emplace(Update{.number = 0, .done = c10::Event(device.type())});
  slot->number = number;
  slot->done.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

void NonfiniteStop::wait_for(int64_t update) {
  if (GuardAccess::stop_so_far(core_.scaler).updates >= update) return;
  for (const auto& known : queued_) {
    if (known && known->number == update) known->done.synchronize();
  }
}

void NonfiniteStop::after_step(const StepResult& result) {
  if (!is_on() || core_.capture.is_capturing()) return;
  if (result.device_flag().defined()) return look();
  // The host has decided, on the CPU or since it has waited.
  if (!result.skipped() || !GuardAccess::would_stop(core_.scaler)) return;
  core_.scaler_updates.settle();
  if (GuardAccess::wait_for_stop(core_.scaler).update != 0) fail();
}

void NonfiniteStop::after_replay() {
  if (is_on()) look();
}

void NonfiniteStop::look() {
  const int64_t queued = GuardAccess::queued_updates(core_.scaler);
  const int64_t known = core_.options.device->is_cpu() ? queued : queued - kLag;
  wait_for(known);
  const int64_t stopped_at = GuardAccess::stop_so_far(core_.scaler).update;
  const bool all_know = core_.world->size() == 1 || stopped_at <= known;
  if (stopped_at != 0 && all_know) fail();
}

void NonfiniteStop::settle() {
  if (!is_on()) return;
  const auto optimizers = core_.optimizers.all();
  const bool step_is_due = std::ranges::any_of(
      optimizers, [](const auto& optimizer) { return optimizer->awaits_step(); });
  if (!step_is_due) core_.scaler_updates.settle();
  if (GuardAccess::wait_for_stop(core_.scaler).update != 0) fail();
}

void NonfiniteStop::fail() {
  core_.scaler_updates.settle();
  const GuardAccess::Stop stop = GuardAccess::wait_for_stop(core_.scaler);
  const std::string own = first_lines(GuardAccess::report(core_.scaler, stop.update));
  GuardAccess::go_on(core_.scaler);
  // A program that catches the Error would otherwise add its next gradients to these.
  for (const auto& optimizer : core_.optimizers.all()) {
    if (optimizer->has_used_gradients()) optimizer->zero_grad(/*set_to_none=*/true);
  }
  const std::string found = lines_of_all(core_, own);
  const int64_t later = stop.updates - stop.update;
  std::string left_out;
  if (later == 1) left_out = ", and the later one was left out too";
  if (later > 1) left_out = c10::str(", and the ", later, " later ones were left out too");
  throw Error(ErrorDetails{
      .problem = c10::str("Gradients are not finite in update ", stop.update),
      .expected = "finite gradients, since .nonfinite = accelerant::Nonfinite::stop",
      .got = found,
      .hint = c10::str("what the optimizers with such gradients train is as before that update",
                       left_out,
                       "; before going on, call zero_grad() of all optimizers; look at the batch "
                       "and the loss, lower the learning rate, or write "
                       "Nonfinite::skip to go on without such updates")});
}

}  // namespace accelerant::detail
