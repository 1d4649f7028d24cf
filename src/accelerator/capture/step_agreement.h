// What all processes do in one call of a captured step. NCCL asks that an exchange is captured by
// all processes or by none, and that all replay what they captured together; so they tell each
// other what they can do, and do the least of it. Takes the time of a small exchange between the
// hosts, while the devices still work on the steps before.
#pragma once

#include <cstdint>

#include "accelerant/dist/world.h"

namespace accelerant::detail {

// In the order of what they allow.
enum class StepOffer : int64_t {
  none,     // the step will never be captured
  run,      // it can run eagerly
  replay,   // or as the graph that there is
  capture,  // or be captured
};

struct StepProposal {
  StepOffer offer = StepOffer::run;
  uint64_t key = 0;          // of the step
  bool lost_graphs = false;  // those that there were cannot be replayed any more
};

struct StepAgreement {
  StepOffer offer = StepOffer::run;  // the least
  uint64_t keys = 0;                 // of all processes: a graph serves these and no others
  bool lost_graphs = false;          // any process has
};

// To be called by all processes. One process alone agrees with itself.
StepAgreement agree(const dist::World& world, const StepProposal& own);

// Whether all processes have captured the step. To be called by all.
bool have_all_captured(const dist::World& world, bool own);

}  // namespace accelerant::detail
