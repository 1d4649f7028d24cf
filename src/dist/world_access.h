// The parts of a World that only the library uses.
#pragma once

#include <functional>
#include <memory>

#include "accelerant/dist/world.h"
#include "accelerant/track/timeline.h"
#include "watch/monitor.h"
#include "watch/progress.h"

namespace accelerant::dist {

struct Groups;

struct WorldAccess {
  // Throws Error if there are none.
  static Groups& groups(const World& world);

  // What this process is doing, for the other processes to see.
  static Progress& progress(const World& world);

  // Where exchanges are recorded while it is on. Never null.
  static const std::shared_ptr<Timeline>& timeline(const World& world);

  // Null if processes do not watch each other.
  static Monitor* monitor(const World& world);

  // Calls f right before the groups end, for objects that must not outlive them, unless the result
  // has been destroyed by then.
  static std::shared_ptr<void> before_close(World& world, std::function<void()> f);
};

}  // namespace accelerant::dist
