// The parts of a World, in the types of c10d. A heavy header: only for sources that use c10d
// directly.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>

namespace accelerant::dist {

class Join;

struct Groups {
  c10::intrusive_ptr<c10d::Store> store;  // only this World's keys

  // For tensors on the CPU and on the World's device.
  c10::intrusive_ptr<c10d::ProcessGroup> data;

  // For CPU tensors only, always Gloo: barriers, shapes, objects. Separate from `data`, so that it
  // works during the exchanges of training, and never waits for a GPU.
  c10::intrusive_ptr<c10d::ProcessGroup> control;

  // Calls of collectives so far, and of wait_for_everyone: normally the same on all processes.
  int64_t calls = 0;
  int64_t waits = 0;
  // Messages exchanged between hosts so far.
  int64_t messages = 0;
  // Preemptions created so far: each has its own keys.
  int64_t preemptions = 0;

  Join* join = nullptr;  // during join_uneven()

  int64_t channels = 0;  // opened so far (side_channel.h)
  // Tells background threads whether the groups still exist.
  std::shared_ptr<const int> life = std::make_shared<const int>(0);
};

}  // namespace accelerant::dist
