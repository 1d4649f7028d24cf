// What an Accelerator asks of its GradScaler beyond scaling: to look at gradients where nothing is
// scaled, and to stop a training at gradients that are not finite.
//
// A stop is decided where the gradients are. The update() of a scaler that stops marks the first
// iteration with an overflow that no smaller scale would avoid. From then on every step counts as
// one with an overflow, so that parameters keep their values until the host learns of it, however
// much later that is. go_on() ends that.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "accelerant/amp/grad_scaler.h"
#include "amp/gradient_checks.h"

namespace accelerant::detail {

struct GuardRole {
  // Losses are not scaled: scale() returns its argument, and gradients of any type are checked and
  // not written.
  bool only_checks = false;

  // Stops as described above.
  bool stops = false;
};

// The checks of one iteration, by the number of the update() that ended it, counted from 1.
struct CheckedIteration {
  int64_t update = 0;
  std::shared_ptr<const std::vector<GradientChecks>> checks = {};
};

struct GuardAccess {
  // Call it before the first use of the scaler.
  static void set_role(GradScaler& scaler, const GuardRole& role);
  static const GuardRole& role(const GradScaler& scaler);

  // Creates the state on this device, unless a loss has done so.
  static void begin(GradScaler& scaler, c10::Device device);

  // How many updates were queued so far. A capture queues none: set the number back after it.
  static int64_t queued_updates(const GradScaler& scaler);
  static void take_back_updates(GradScaler& scaler, int64_t queued);

  // The iteration that the last update() ended; without checks unless the scaler stops.
  static CheckedIteration last_iteration(const GradScaler& scaler);

  // The replay of a graph has run update() once more, and the checks of that iteration again.
  static void note_replayed_update(GradScaler& scaler, const CheckedIteration& of_the_graph);

  // Whether an overflow in this iteration would stop. Exact only where the last update() is done.
  static bool would_stop(const GradScaler& scaler);

  struct Stop {
    int64_t update = 0;   // the one that stopped; 0: none
    int64_t updates = 0;  // done so far
  };
  // As far as the host knows; never waits. wait_for_stop() waits for all queued updates.
  static Stop stop_so_far(const GradScaler& scaler);
  static Stop wait_for_stop(const GradScaler& scaler);

  // The parameters whose gradients were not finite in that iteration. Waits for the device. Empty
  // if it was long ago.
  static OverflowReport report(const GradScaler& scaler, int64_t update);

  // Later steps count again.
  static void go_on(GradScaler& scaler);
};

}  // namespace accelerant::detail
