// A copy of tensors in host memory, so that they can be written while training changes the
// originals.
//
//   HostSnapshot snapshot;                        // reuses its memory for every copy
//   auto copies = snapshot.take(parts);           // returns once the copies are queued
//   ...
//   snapshot.wait_until_copied();                 // in the thread that writes them
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <vector>

#include "checkpoint/state_part.h"

namespace accelerant::checkpoint {

class HostSnapshot {
 public:
  // The parts with copies of their tensors. A GPU's current stream copies its tensors to pinned
  // memory, without waiting: later work on the stream does not affect the copies. Overwrites the
  // copies of the last take().
  std::vector<StatePart> take(const std::vector<StatePart>& parts);

  // Returns once the copies are complete.
  void wait_until_copied();

 private:
  void reserve(std::size_t bytes, bool pinned);

  at::Tensor memory_;
  std::vector<c10::Event> copied_;  // one per GPU
};

}  // namespace accelerant::checkpoint
