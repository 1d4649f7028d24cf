// The processes of a run and what connects them: a key-value store, a group for the tensors of
// training, and a separate group for control messages.
//
//   auto world = dist::World::join(dist::Environment::detect());
//   if (world->rank() == 0) ...
//
// An Accelerator creates and owns one. The groups end with the World, which must be destroyed
// before main returns. Every process must create its Worlds, and make all exchanges through one, in
// the same order.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "accelerant/watch/environment.h"
#include "accelerant/watch/process_group_options.h"

namespace accelerant::dist {

class World {
 public:
  // Waits until all processes have joined. With one process nothing is connected. `device` is the
  // device to train on. Throws an Error that names the missing processes if not all join in time.
  static std::shared_ptr<World> join(const Environment& environment,
                                     const ProcessGroupOptions& options = {},
                                     c10::Device device = c10::Device(c10::DeviceType::CPU));
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  const Environment& environment() const { return environment_; }
  int64_t rank() const { return environment_.process_index; }
  int64_t size() const { return environment_.num_processes; }
  c10::Device device() const { return device_; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  // Whether processes compare what they do before every exchange; see ProcessGroupOptions::debug.
  bool is_debug() const { return is_debug_; }

  // Whether there are groups: with several processes, until close().
  bool is_connected() const;

  // Ends the groups. Later exchanges throw Error.
  void close();

 private:
  friend struct WorldAccess;
  struct Parts;

  World(const Environment& environment, const ProcessGroupOptions& options, c10::Device device);

  Environment environment_;
  ProcessGroupOptions options_;
  c10::Device device_;
  bool is_debug_ = false;
  std::unique_ptr<Parts> parts_;
};

}  // namespace accelerant::dist
