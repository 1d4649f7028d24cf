// How processes with different numbers of batches train together: Accelerator::join_uneven_inputs.
#pragma once

namespace accelerant::dist {

struct JoinOptions {
  // Divide the sum of gradients by the number of all processes, also when some have ended: a late batch
  // then weighs as much as any other. If false, divide by the number of those still at it. Default: true.
  bool divide_by_initial_world_size = true;

  // Instead of going on, end the training of all processes with an Error as soon as one has no more
  // inputs. Default: false.
  bool throw_on_early_termination = false;
};

}  // namespace accelerant::dist
