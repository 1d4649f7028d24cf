// What a World is made of, in the types of c10d. A heavy header: only for sources that talk to
// c10d.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <memory>

namespace accelerant::dist {

class Join;

struct Groups {
  c10::intrusive_ptr<c10d::Store> store;  // keys of this World only

  // For tensors on the CPU and on the World's device.
  c10::intrusive_ptr<c10d::ProcessGroup> data;

  // For tensors on the CPU only, always Gloo: barriers, shapes, objects. Apart from `data`, so that
  // it works while the training's exchanges are under way, and never waits for a GPU.
  c10::intrusive_ptr<c10d::ProcessGroup> control;

  // Calls of collectives so far, and of wait_for_everyone: the same on all processes if all is
  // well.
  int64_t calls = 0;
  int64_t waits = 0;
  // Exchanges of messages between hosts so far.
  int64_t messages = 0;
  // Preemptions made so far: each has keys of its own.
  int64_t preemptions = 0;

  Join* join = nullptr;  // of uneven inputs, while it lasts

  int64_t channels = 0;  // opened so far (side_channel.h)
  // Tells threads beside the training whether the groups are still there.
  std::shared_ptr<const int> life = std::make_shared<const int>(0);
};

}  // namespace accelerant::dist
