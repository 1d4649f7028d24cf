// Saving and stopping on request: decides at which update to save when a signal arrives.
//
//   Preemption preemption(world, {SIGTERM, SIGUSR1});
//   while (training) {
//     optimizer.step();
//     if (preemption.at_boundary()) {
//       const std::string folder = save();
//       throw Preempted(preemption.signal(), folder);
//     }
//   }
//
// A signal to one process is enough: all processes return true after the same update.
// core/preemption_signals.h explains what signals do meanwhile, preemption_watcher.h how processes
// agree.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerant/core/detail/own_process.h"
#include "accelerant/dist/world.h"
#include "core/preemption_signals.h"

namespace accelerant::dist {

class PreemptionWatcher;

// Borrows the World, and must be destroyed before it. With several processes, all must create
// theirs in the same order and pass the same number of boundaries. For the training thread.
class Preemption {
 public:
  explicit Preemption(const World& world, std::vector<int> signals = {SIGTERM, SIGUSR1});
  // Tells the other processes that this one has left. If they are asked to save from now on, they
  // continue instead, since a checkpoint needs all processes.
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  // Call it after each update. Returns true, on all processes and from then on always, when it is
  // time to save and stop. Costs only a counter, except once after a signal: then it waits until
  // all processes have answered when they can save, usually well under a second. Throws an Error
  // that names the process if one does not answer within the timeout of the process group, or has
  // failed. Inside a join_uneven() it does nothing: a request is served after it.
  bool at_boundary();

  // The signal that asks for it, whichever process received it; 0 if there is none. With several
  // processes it is known once they have agreed.
  int signal() const;

  int64_t updates() const { return updates_; }

 private:
  bool is_time_to_save();
  void await_agreement();

  const World& world_;
  const PreemptionSignals signals_;
  std::shared_ptr<PreemptionWatcher> watcher_;  // null with one process
  int64_t updates_ = 0;
  bool has_marked_ = false;
  bool has_warned_ = false;
  accelerant::detail::OwnProcess process_;
};

}  // namespace accelerant::dist
