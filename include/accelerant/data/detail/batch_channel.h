// How the batches that rank 0 reads for all reach the other processes
// (Placement::dispatch_batches).
//
//   placement.channel = data::batch_channel(world);
//
// A channel connects the processes of one run; an Accelerator makes one for all of its loaders.
// Each loader has a line of its own, by its number (Placement::channel_line), so no process ever
// gets batches of another loader than the one it loops over. Messages are blocks of bytes, CPU
// tensors of uint8, whatever the device of the training is.
//
// Other ways to send messages, and simulated processes in tests, derive from these classes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace accelerant::dist {
class World;
}

namespace accelerant::data {

// From rank 0 to each of the others, in order. Used by one thread at a time.
class BatchLine {
 public:
  virtual ~BatchLine() = default;
  // On rank 0. The message may still be under way when it returns; it must not be changed.
  virtual void send(int64_t rank, const at::Tensor& message) = 0;
  // On rank 0: waits until all messages have been taken.
  virtual void flush() = 0;
  // On the others: waits for the next message.
  virtual at::Tensor receive() = 0;
};

class BatchChannel {
 public:
  virtual ~BatchChannel() = default;
  // The line of that number. Of the same number in all processes are the ends of one line.
  virtual std::unique_ptr<BatchLine> open(int64_t number) = 0;
};

// Over the World's group for control messages. Does not keep the World alive; when it is gone, or
// closed, sending and receiving are an Error.
std::shared_ptr<BatchChannel> batch_channel(std::shared_ptr<const dist::World> world);

}  // namespace accelerant::data
