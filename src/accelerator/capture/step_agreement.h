// Decides what all processes do in one call of a captured step. NCCL requires that all processes or
// none capture an exchange, and that they replay together what they captured together. So they tell
// each other what they can do, and do the minimum. This costs a small exchange between the hosts,
// while the devices still work on earlier steps.
#pragma once

#include <cstdint>

#include "accelerant/dist/world.h"

namespace accelerant::detail {

// Ordered from the least to the most that a process can do.
enum class StepOffer : int64_t {
  none,     // the step will never be captured
  run,      // it can run eagerly
  replay,   // or replay an existing graph
  capture,  // or be captured
};

struct StepProposal {
  StepOffer offer = StepOffer::run;
  uint64_t key = 0;          // of this process's step
  bool lost_graphs = false;  // earlier graphs can no longer be replayed
};

struct StepAgreement {
  StepOffer offer = StepOffer::run;  // the minimum
  uint64_t keys = 0;                 // of all processes; a graph is valid only for these
  bool lost_graphs = false;          // in any process
};

// All processes must call it. A single process agrees with itself.
StepAgreement agree(const dist::World& world, const StepProposal& own);

// Whether all processes have captured the step. All processes must call it.
bool have_all_captured(const dist::World& world, bool own);

}  // namespace accelerant::detail
