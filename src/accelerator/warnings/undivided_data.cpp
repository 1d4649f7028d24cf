#include "accelerator/warnings/undivided_data.h"

#include <c10/util/StringUtil.h>

#include "accelerator/core.h"

namespace accelerant::detail {

void look_for_undivided_data(Core& core) {
  // The first may be a trial run.
  if (core.counts.backwards != 2 || core.environment.num_processes == 1) return;
  if (core.loaders.have_looped()) return;
  core.warnings.say(
      &WarningOptions::undivided_data,
      c10::str("backward() runs outside a loop over a prepared loader: unless the program divides "
               "the samples itself, all ",
               core.environment.num_processes,
               " processes train with the same ones. Prepare the loader: auto [model, optimizer, "
               "loader] = accelerator.prepare(net, adamw, batches)"));
}

}  // namespace accelerant::detail
