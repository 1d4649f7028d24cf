// Sends the batches that rank 0 reads for all to the other processes (Placement::dispatch_batches).
//
//   placement.channel = data::batch_channel(world);
//
// A channel connects the processes of one run. An Accelerator makes one for all of its loaders.
// Each loader has its own line, identified by its number (Placement::channel_line), so a process
// only gets batches of the loader it loops over. Messages are blocks of bytes: uint8 tensors on the
// CPU, whatever the training device.
//
// Derive from these classes for other transports, and for simulated processes in tests.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace accelerant::dist {
class World;
}

namespace accelerant::data {

// Carries messages from rank 0 to each other rank, in order. Used by one thread at a time.
class BatchLine {
 public:
  virtual ~BatchLine() = default;
  // On rank 0. Sending may still be in progress when it returns; the message must not be changed.
  virtual void send(int64_t rank, const at::Tensor& message) = 0;
  // On rank 0: waits until all messages have been received.
  virtual void flush() = 0;
  // On the other ranks: waits for the next message.
  virtual at::Tensor receive() = 0;
};

class BatchChannel {
 public:
  virtual ~BatchChannel() = default;
  // Opens the line with this number. Lines with the same number in different processes are
  // connected.
  virtual std::unique_ptr<BatchLine> open(int64_t number) = 0;
};

// Uses the World's group for control messages. Does not keep the World alive; after it is closed or
// destroyed, sending and receiving are Errors.
std::shared_ptr<BatchChannel> batch_channel(std::shared_ptr<const dist::World> world);

}  // namespace accelerant::data
