// Texts between all processes beside the training: from a thread in the background, while the main
// threads use the process groups. Asynchronous saves agree through it on success before a folder
// gets its name.
//
//   auto channel = SideChannel::open(world, "checkpoint");         // main thread, on all processes
//   // In the thread that saves:
//   const auto results = channel->collect(own_result);             // process 0 gets all of them
//   const auto outcome = channel->announce(text_of(results));      // all get what process 0 says
//
// The end, in this order: stop(), join the thread that uses the channel, destroy the channel,
// World::close(). The channel borrows nothing of the World: one that has ended, or is gone, ends
// the calls with an Error.
//
// The process groups belong to the main threads, so the texts are keys in the store: process 0
// collects, then announces. A StoreCourier makes the calls, as one on a store whose process is
// stopped never comes back. Who waits looks at the monitor's board to learn which processes have
// failed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "accelerant/dist/world.h"

namespace accelerant::dist {

// All processes make the same calls in the same order, from one thread at a time. A call throws an
// Error
// - when the timeout of the process group has passed: it names the ranks that have not come;
// - when a process that it waits for has failed, has finished, has lost its connections or uses the channel no
//   more;
// - when any other process has failed or has lost its connections, and those it waits for do not come within a
//   second: a process that was killed says nothing, but others that exchange tensors with it notice;
// - when the store is gone, stop() was called or the World has ended.
// After an Error the channel is of no use: later calls throw the same, and processes that wait for
// this one are told its text.
class SideChannel {
 public:
  // Called by all processes, in the same order with respect to other channels of the World. `name`
  // is for messages: what the processes exchange texts for. A process alone needs no store.
  static std::unique_ptr<SideChannel> open(const World& world, const std::string& name);

  // stop(). Takes 0.1 s at most, also where the store does not answer.
  virtual ~SideChannel() = default;

  // Process 0 waits for the texts of all and returns them, by rank. The others return nothing, at
  // once. A text has 4 MiB at most.
  virtual std::vector<std::string> collect(const std::string& mine) = 0;

  // The others wait for the text of process 0; all return it. Theirs is ignored.
  virtual std::string announce(const std::string& text) = 0;

  // From any thread, any number of times. A call that waits, and all later ones, throw an Error at
  // once.
  virtual void stop() = 0;
};

}  // namespace accelerant::dist
