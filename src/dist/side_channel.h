// Exchanges texts between all processes in the background, while the main threads use the process
// groups. Asynchronous saves use it to agree on success before a folder gets its name.
//
//   auto channel = SideChannel::open(world, "checkpoint");         // main thread, on all processes
//   // In the thread that saves:
//   const auto results = channel->collect(own_result);             // process 0 gets all of them
//   const auto outcome = channel->announce(text_of(results));      // all get what process 0 says
//
// Shut down in this order: stop(), join the thread that uses the channel, destroy the channel,
// World::close(). The channel borrows nothing from the World: if the World has ended, calls throw
// Error.
//
// The process groups belong to the main threads, so the texts are keys in the store: process 0
// collects, then announces. A StoreCourier makes the calls, because a call on a store whose process
// is stopped never returns. A waiting process checks the monitor's board to learn which processes
// have failed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "accelerant/dist/world.h"

namespace accelerant::dist {

// All processes make the same calls in the same order, from one thread at a time. A call throws an
// Error if
// - the timeout of the process group has passed; it names the ranks that have not arrived;
// - an awaited process has failed, has finished, has lost its connections or no longer uses the
//   channel;
// - any other process has failed or has lost its connections, and the awaited processes do not
//   arrive within a second: a killed process reports nothing, but others that exchange tensors with
//   it notice;
// - the store is gone, stop() was called or the World has ended.
// After an Error the channel is unusable: later calls throw the same Error, and processes that wait
// for this one get its text.
class SideChannel {
 public:
  // All processes must call it, in the same order relative to other channels of the World. `name`
  // appears in messages: what the processes exchange texts for. A single process needs no store.
  static std::unique_ptr<SideChannel> open(const World& world, const std::string& name);

  // Calls stop(). Takes at most 0.1 s, even if the store does not answer.
  virtual ~SideChannel() = default;

  // Process 0 waits for the texts of all processes and returns them by rank. The others return
  // nothing, at once. A text may have at most 4 MiB.
  virtual std::vector<std::string> collect(const std::string& mine) = 0;

  // The others wait for the text of process 0; all return it. The others' own text is ignored.
  virtual std::string announce(const std::string& text) = 0;

  // May be called from any thread, any number of times. A waiting call, and all later ones, throw
  // Error at once.
  virtual void stop() = 0;
};

}  // namespace accelerant::dist
