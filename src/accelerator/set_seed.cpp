#include "accelerant/accelerator/set_seed.h"

#include <ATen/Context.h>
#include <c10/util/StringUtil.h>

#include "accelerant/core/error.h"

namespace accelerant {

void set_seed(uint64_t seed, const SetSeedOptions& options) {
  if (options.process_index < 0) {
    throw Error(ErrorDetails{.problem = "set_seed: process_index is out of range",
                             .expected = "0 or more",
                             .got = c10::str(options.process_index)});
  }
  if (options.device_specific) seed += static_cast<uint64_t>(options.process_index);
  at::manual_seed(seed);
  if (options.deterministic) {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
}

}  // namespace accelerant
