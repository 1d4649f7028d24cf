#include "dist/preemption.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include "accelerant/core/log.h"
#include "core/launch_contract.h"
#include "core/texts.h"
#include "dist/groups.h"
#include "dist/message.h"
#include "dist/preemption_watcher.h"
#include "dist/world_access.h"
#include "watch/failure.h"

namespace accelerant::dist {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How often a process asks the store, which one process serves for all.
milliseconds interval_for(int64_t size) { return std::max(milliseconds(250), milliseconds(size)); }

// `what` happened and who is to blame. `is_consequence`: of the failure of another process.
[[noreturn]] void refuse(const World& world, const std::string& what, bool is_consequence) {
  const std::string problem = "The processes could not agree on when to save their state: ";
  if (Monitor* const monitor = WorldAccess::monitor(world))
    monitor->fail(ProcessState::lost, problem + what);
  throw ExchangeError(c10::str("Rank ", world.rank(), " of ", world.size(), ": ", problem, what),
                      problem + what, is_consequence);
}

std::string missing_text(const World& world, PreemptionWatcher& watcher) {
  const auto missing = watcher.missing(milliseconds(1000));
  std::string text = !missing           ? "the store does not answer"
                     : missing->empty() ? "all have answered, but nothing was decided"
                                        : ranks_text(*missing) + " did not answer";
  text += c10::str(" within ", seconds_text(world.timeout()));
  if (Monitor* const monitor = WorldAccess::monitor(world))
    text += "; " + monitor->who_is_late(milliseconds(500));
  return text +
         "; look at the output of these processes, or raise ProcessGroupOptions::timeout if they "
         "are only slow";
}

}  // namespace

Preemption::Preemption(const World& world, std::vector<int> signals)
    : world_(world), signals_(std::move(signals)) {
  if (world.size() == 1) return;
  Groups& groups = WorldAccess::groups(world);
  auto store = c10::make_intrusive<c10d::PrefixStore>(c10::str("preemption/", groups.preemptions++),
                                                      groups.store->clone());
  watcher_ = PreemptionWatcher::start(std::move(store), world.rank(), world.size(),
                                      &PreemptionSignals::received, interval_for(world.size()));
}

Preemption::~Preemption() {
  if (watcher_ && process_.is_this_one()) watcher_->stop(milliseconds(500));
}

bool Preemption::at_boundary() {
  // With uneven inputs, processes make different numbers of updates, and only those with inputs get
  // here.
  if (watcher_ && WorldAccess::groups(world_).join != nullptr) return false;
  ++updates_;
  const bool is_time = is_time_to_save();
  if (is_time && !std::exchange(has_marked_, true)) mark_saving();
  return is_time;
}

bool Preemption::is_time_to_save() {
  if (!watcher_) return PreemptionSignals::received() != 0;
  Boundary boundary = watcher_->count_update();
  if (boundary == Boundary::wait) {
    await_agreement();
    boundary = watcher_->boundary();
  }
  if (boundary == Boundary::too_late && !std::exchange(has_warned_, true)) {
    const PreemptionAgreement request = watcher_->agreement().value();
    log(LogLevel::warning,
        c10::str(signal_name(request.signal), " asks rank ", request.rank,
                 " to save and stop, but a process has finished training: nothing is saved"));
  }
  return boundary == Boundary::save;
}

int Preemption::signal() const {
  if (!watcher_) return PreemptionSignals::received();
  const auto agreement = watcher_->agreement();
  return agreement ? agreement->signal : 0;
}

void Preemption::await_agreement() {
  const auto operation = WorldAccess::progress(world_).wait("agreeing on when to save");
  const auto deadline = Clock::now() + world_.timeout();
  Monitor* const monitor = WorldAccess::monitor(world_);
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
    if (watcher_->await_agreement(std::clamp(left, milliseconds(0), milliseconds(250)))) break;
    const std::string failed = monitor == nullptr ? "" : monitor->who_has_failed(milliseconds(250));
    if (!failed.empty()) refuse(world_, failed + "; look at the output of these processes", true);
    if (left.count() <= 0) refuse(world_, missing_text(world_, *watcher_), false);
  }
  if (const std::string failure = watcher_->failure(); !failure.empty()) {
    refuse(world_,
           "the store is lost, so the process that serves it has ended (" + c10d_message(failure) +
               "); look at the output of rank 0",
           true);
  }
}

}  // namespace accelerant::dist
