// The World of a rank of a RANK_TEST.
#pragma once

#include <accelerant/dist/world.h>

#include <memory>

inline std::shared_ptr<accelerant::dist::World> join_world(
    const accelerant::dist::ProcessGroupOptions& options = {}) {
  return accelerant::dist::World::join(accelerant::dist::Environment::detect(), options);
}
