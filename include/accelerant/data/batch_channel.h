// How the batches that rank 0 reads for all reach the other processes (Placement::dispatch_batches).
//
//   placement.channel = data::batch_channel(world);
//
// A channel connects the processes of one run; an Accelerator makes one for all of its loaders. It numbers
// them in the order in which they are placed (or prepared), which must be the same in all processes; each
// has a line of its own. At the beginning of a loop every process tells rank 0 which loader it is over; if
// that differs, all get an Error. Messages are blocks of bytes, CPU tensors of uint8, whatever the device of
// the training is.
//
// Other ways to send messages, and simulated processes in tests, derive from these classes.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
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
  // On rank 0: waits until a process has taken all messages to it.
  virtual void flush(int64_t rank) = 0;
  // On the others: waits for the next message.
  virtual at::Tensor receive() = 0;
};

class BatchChannel {
 public:
  virtual ~BatchChannel() = default;
  // The line of a loader, by its number.
  virtual std::unique_ptr<BatchLine> open(int64_t loader) = 0;
  // On the others: tells rank 0 that they begin a loop. Does not wait until it is heard.
  virtual void announce(const at::Tensor& message) = 0;
  // On rank 0: waits for the next announcement of a process.
  virtual at::Tensor await_announcement(int64_t rank) = 0;

  // The number of a loader that is placed now.
  int64_t next_loader() { return loaders_++; }

 private:
  std::atomic<int64_t> loaders_ = 0;
};

// Over the World's group for control messages. Does not keep the World alive; when it is gone, or
// closed, sending and receiving are an Error.
std::shared_ptr<BatchChannel> batch_channel(std::shared_ptr<const dist::World> world);

}  // namespace accelerant::data
