// Saving and stopping on request: when a signal asks a training to, at which update it does.
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
// A signal to one process is enough: all processes return true after the same update. What signals
// do meanwhile is in core/preemption_signals.h, how processes agree in preemption_watcher.h.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerant/dist/world.h"
#include "core/preemption_signals.h"

namespace accelerant::dist {

class PreemptionWatcher;

// Borrows the World, and must end before it. With several processes all must make theirs in the
// same order, and pass the same number of boundaries. For the thread of the training.
class Preemption {
 public:
  explicit Preemption(const World& world, std::vector<int> signals = {SIGTERM, SIGUSR1});
  // The other processes are told that this one has left: if they are asked to save from now on,
  // they go on instead, since a checkpoint needs all.
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  // One more update is done. True: now is the time to save and stop, on all processes, and from now
  // on always. Costs nothing but a counter, except once, after a signal: then it waits until all
  // processes have answered when they can save, well below a second as a rule. Throws Error if a
  // process does not answer within the timeout of the process group, naming it, or has failed.
  // Inside a join_uneven() it does nothing: a request is served after it.
  bool at_boundary();

  // The signal that asks for it, to whichever process it went; 0: none. With several processes it
  // is known from the agreement on.
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
};

}  // namespace accelerant::dist
