// A copy of tensors in host memory, so that they can be written while the training changes the
// originals.
//
//   HostSnapshot snapshot;                        // its memory is used again for every copy
//   auto copies = snapshot.take(parts);           // returns when the copies are under way
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
  // The parts with copies of their tensors. Tensors on a GPU are copied by its current stream, to
  // pinned memory, without waiting: what the stream does afterwards does not reach the copies. The
  // copies of the last take() are overwritten.
  std::vector<StatePart> take(const std::vector<StatePart>& parts);

  // Returns when the copies are complete.
  void wait_until_copied();

 private:
  void make_room(std::size_t bytes, bool pinned);

  at::Tensor memory_;
  std::vector<c10::Event> copied_;  // one for each GPU
};

}  // namespace accelerant::checkpoint
